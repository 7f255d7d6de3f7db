// Compares the values of one layer of a pair of rows. Internal to the comparison of two
// implementations.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "analysis/metrics/teacher_comparison.h"

namespace blockscope {

/// Values [head, position, channel] of one layer of a row.
template <typename Value>
struct LayerArray {
  std::vector<Value> values;
  std::size_t heads = 1, positions = 0, channels = 1;
  std::span<const Value> vector(std::size_t head, std::size_t position) const {
    return std::span(values).subspan((head * positions + position) * channels, channels);
  }
  bool empty() const { return values.empty(); }
};

/// A head's number in the model, and its slots in both traces.
struct SharedHead {
  std::int64_t head = -1;
  std::size_t a = 0, b = 0;
};

/// How the range of a value is found.
enum class TeacherRange : std::uint8_t {
  vector,  ///< largest |value| of its vector over channels, in either trace
  log,     ///< a log-sum-exp: the larger |value|, at least 1
  one      ///< a probability
};

struct ValueRules {
  double tolerance = 0.0;
  TeacherRange range = TeacherRange::vector;
  /// A vector that only one trace has may have been left out by a cache.
  bool may_be_left_out = false;
};

/// Positions [B]: 1 where both rows computed it.
using BothValid = std::vector<std::uint8_t>;

class TeacherValues {
 public:
  TeacherValues(const TeacherPlace& row, const BothValid& valid) : row_(row), valid_(valid) {}

  /// Adds to `counts`. Returns the first vector with a difference, by position and then by head,
  /// and in it the largest one.
  std::optional<TeacherDifference> compare(const LayerArray<float>& a, const LayerArray<float>& b,
                                           std::span<const SharedHead> heads,
                                           const ValueRules& rules, TeacherCounts& counts) const;
  /// Expert sets [1, position, expert]. Their weights may be empty.
  std::optional<TeacherDifference> experts(const LayerArray<std::int32_t>& a,
                                           const LayerArray<std::int32_t>& b,
                                           const LayerArray<float>& weights_a,
                                           const LayerArray<float>& weights_b,
                                           TeacherCounts& counts, ExpertGaps& gaps) const;
  /// Weights of the same experts, at positions where both chose the same ones.
  std::optional<TeacherDifference> router_weights(const LayerArray<std::int32_t>& a,
                                                  const LayerArray<std::int32_t>& b,
                                                  const LayerArray<float>& weights_a,
                                                  const LayerArray<float>& weights_b,
                                                  double tolerance, TeacherCounts& counts) const;

 private:
  const TeacherPlace& row_;
  const BothValid& valid_;
};

/// The merged output of the two parts, in float64, as docs/trace_format.md defines it.
LayerArray<float> merged_output(const LayerArray<float>& external,
                                const LayerArray<float>& internal,
                                const LayerArray<float>& lse_external,
                                const LayerArray<float>& lse_internal);

/// How near to a tie a token's two choices are; NaN without weights.
double tie_gap(std::span<const std::int32_t> a, std::span<const std::int32_t> b,
               std::span<const float> weights_a, std::span<const float> weights_b);

}  // namespace blockscope
