// One token x token or step x step matrix of a trace as a result like any other: which rows, layer
// and head it is of, and what it is called (FlashBlock, arXiv 2602.05305, Fig. 1). The cosines are
// token_similarity.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

/// What messages call the choices: those of the command line unless said otherwise.
struct MatrixWords {
  std::string matrix = "--matrix", layer = "--layer", head = "--head", step = "--step";
  std::string row_a = "--row-a", row_b = "--row-b";
  std::string others = "--sequence, --block and --step";
};

struct MatrixRequest {
  enum class Kind { token, step };
  Kind kind = Kind::token;
  std::string field = "external";     ///< internal, query, hidden, key, value
  std::optional<std::int64_t> layer;  ///< the model's index; unset: the first that was recorded
  std::optional<std::int64_t> head;   ///< unset: heads concatenated (token), their mean (step)
  RowSelection rows;                  ///< the first block of these that has the steps
  /// Of a token matrix: two, or one and the step after it; empty: the first two that were recorded.
  std::vector<std::int64_t> steps;
  std::optional<std::pair<std::int64_t, std::int64_t>> row_pair;  ///< instead of steps
  MatrixWords words;
};

/// One array [position_a, position_b] or [step_a, step_b] of cosines. Throws UsageError when the
/// request matches nothing or more than one element, TraceError when the trace lacks the field.
MetricResult similarity_matrix(const TraceGroup& traces, const MatrixRequest& request);

}  // namespace blockscope
