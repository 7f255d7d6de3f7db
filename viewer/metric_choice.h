// The metrics that the Heads and Curves panels offer, and how one cell of a MetricResult is found
// for a query head.
#pragma once

#include <array>
#include <cstddef>

#include "analysis/metric_result.h"
#include "viewer/view_model.h"

namespace blockscope {

struct MetricChoice {
  const char* label;   ///< for people
  const char* metric;  ///< name in analysis/metrics.h
  const char* array;   ///< of the MetricResult
  const char* unit;
  bool high_is_steady;  ///< orders the colour map's ends in the legend
};

inline constexpr std::array<MetricChoice, 5> kMetricChoices = {{
    {"similarity of A_out", "similarity", "similarity_external", "cosine", true},
    {"similarity of A_in", "similarity", "similarity_internal", "cosine", true},
    {"external mass", "external_mass", "external_mass", "share", true},
    {"recall of step 1's set", "recall", "recall", "share", true},
    {"union size", "union_size", "union_size", "|union| / k", false},
}};

/// Mean per (layer, head) [layers, heads] for query heads; KV-head metrics repeat for the heads of
/// a group. With several k, the largest.
SimilarityMatrix head_grid(const MetricResult& result, const MetricChoice& choice,
                           const TraceMeta& meta);

/// Values over steps for one (layer, head) slot; x = step.
struct Curve {
  std::vector<double> steps, values;
  std::int64_t terms = 0;
};
Curve head_curve(const MetricResult& result, const MetricChoice& choice, const TraceMeta& meta,
                 std::size_t layer, std::size_t head);

}  // namespace blockscope
