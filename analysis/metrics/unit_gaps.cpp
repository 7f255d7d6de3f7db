#include <Eigen/Core>
#include <algorithm>

#include "analysis/metrics/query_statistics.h"
#include "decode_record/base/nan.h"

namespace blockscope {

UnitGaps unit_gaps(std::span<const float> a, std::span<const float> b, std::size_t channels,
                   std::span<const std::uint8_t> valid) {
  using Vector = Eigen::VectorXf;
  using Row = Eigen::Map<const Vector>;
  const auto width = static_cast<Eigen::Index>(channels);
  Vector difference(width);
  Eigen::VectorXd sum = Eigen::VectorXd::Zero(width);
  double gaps = 0.0;
  std::int64_t positions = 0;
  // Only keeps a zero vector at zero, because the norms of real states are far larger.
  constexpr float kSmallestNorm = 1e-30F;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] == 0) continue;
    const Row u(a.data() + i * channels, width);
    const Row v(b.data() + i * channels, width);
    difference = u / std::max(u.norm(), kSmallestNorm) - v / std::max(v.norm(), kSmallestNorm);
    // A NaN or infinite channel makes the norm and the gap NaN, so the value is counted and not
    // averaged.
    gaps += static_cast<double>(difference.norm());
    sum += difference.cast<double>();
    ++positions;
  }
  if (positions == 0) {
    return {kNaN, kNaN};
  }
  const auto n = static_cast<double>(positions);
  return {gaps / n, sum.norm() / n};
}

}  // namespace blockscope
