#include "viewer/metric_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace blockscope {
namespace {

/// The array with k, where it has one, fixed to the largest.
ResultArray without_k(const ResultArray& array) {
  if (!array.has_axis("k")) return array;
  const auto& sizes = array.axes[array.axis("k")].index;
  return select(array, "k", {*std::ranges::max_element(sizes)});
}

/// Index along the array's head axis for a recorded query head.
std::optional<std::size_t> column_of(const ResultArray& array, const TraceMeta& meta,
                                     std::size_t head) {
  if (array.has_axis("head")) return head;
  if (!array.has_axis("kv_head")) return std::nullopt;
  const std::int64_t group = std::max<std::int64_t>(1, meta.num_heads / meta.num_kv_heads);
  const auto found = std::ranges::find(meta.kv_heads, meta.heads[head] / group);
  if (found == meta.kv_heads.end()) return std::nullopt;
  return static_cast<std::size_t>(found - meta.kv_heads.begin());
}

std::string head_axis(const ResultArray& array) {
  return array.has_axis("head") ? "head" : "kv_head";
}

}  // namespace

SimilarityMatrix head_grid(const MetricResult& result, const MetricChoice& choice,
                           const TraceMeta& meta) {
  SimilarityMatrix grid{meta.layers.size(), meta.heads.size(), {}};
  grid.values.assign(grid.rows * grid.columns, std::numeric_limits<float>::quiet_NaN());
  const ResultArray* array = result.find(choice.array);
  if (array == nullptr) return grid;
  const ResultArray per_step = without_k(*array);
  const ResultArray mean = mean_over_others(per_step, {"layer", head_axis(per_step)});
  for (std::size_t layer = 0; layer < grid.rows; ++layer) {
    for (std::size_t head = 0; head < grid.columns; ++head) {
      const auto column = column_of(per_step, meta, head);
      if (!column) continue;
      grid.values[layer * grid.columns + head] = static_cast<float>(mean.at({layer, *column}));
    }
  }
  return grid;
}

Curve head_curve(const MetricResult& result, const MetricChoice& choice, const TraceMeta& meta,
                 std::size_t layer, std::size_t head) {
  Curve curve;
  const ResultArray* array = result.find(choice.array);
  if (array == nullptr) return curve;
  const ResultArray per_step = without_k(*array);
  const auto column = column_of(per_step, meta, head);
  if (!column || !per_step.has_axis("step")) return curve;
  const ResultArray means = mean_over_others(per_step, {"layer", head_axis(per_step), "step"});
  const auto& steps = means.axes[2].index;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double value = means.at({layer, *column, i});
    if (std::isnan(value)) continue;
    curve.steps.push_back(steps[i]);
    curve.values.push_back(value);
    if (!means.terms.empty()) {
      curve.terms += means.terms[(layer * means.axes[1].size() + *column) * steps.size() + i];
    }
  }
  return curve;
}

}  // namespace blockscope
