// One matrix of a trace as a MetricResult, with its rows, layer and head in the title: token x
// token or step x step cosines (FlashBlock, arXiv 2602.05305, Fig. 1), which token_similarity.h
// computes, or the attention weights of attention_map.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

/// Names of the choices in error messages; default: the options of the command line.
struct MatrixWords {
  std::string matrix = "--matrix", layer = "--layer", head = "--head", step = "--step";
  std::string row_a = "--row-a", row_b = "--row-b";
  std::string others = "--sequence, --block and --step";
};

struct MatrixRequest {
  enum class Kind { token, step, attention };  ///< the order of kMatrixKinds
  Kind kind = Kind::token;
  std::string field = "external";     ///< internal, query, hidden, key, value; not for attention
  std::optional<std::int64_t> layer;  ///< the model's index; unset: the first recorded layer
  std::optional<std::int64_t> head;   ///< unset: heads concatenated (token), their mean (step)
  RowSelection rows;                  ///< uses the first of these blocks that has the steps
  /// For a token matrix: two steps, or one and its next step; empty: the first two recorded steps.
  /// For attention: one step; empty: the first recorded one.
  std::vector<std::int64_t> steps;
  std::optional<std::pair<std::int64_t, std::int64_t>> row_pair;  ///< instead of steps
  MatrixWords words;
};

inline constexpr std::array<std::string_view, 3> kMatrixKinds{"token", "step", "attention"};
/// Throws UsageError for another name.
MatrixRequest::Kind matrix_kind(std::string_view name);

/// One array [position_a, position_b] or [step_a, step_b] of cosines, or that of attention_matrix
/// (attention_map.h). Throws UsageError if the
/// request matches nothing or more than one element, and TraceError if the trace lacks the field.
MetricResult similarity_matrix(const TraceGroup& traces, const MatrixRequest& request);

}  // namespace blockscope
