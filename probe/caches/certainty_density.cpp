#include "probe/caches/certainty_density.h"

#include <cmath>
#include <cstdint>

namespace blockscope {

std::vector<float> certainty_density(const std::vector<bool>& known, double sigma) {
  const auto length = static_cast<int64_t>(known.size());
  const auto weight = [&](int64_t distance) {
    const auto d = static_cast<double>(distance);
    return std::exp(-d * d / (2.0 * sigma * sigma));
  };
  double whole = 0.0;
  for (int64_t d = -3 * length; d < 3 * length; ++d) whole += weight(d);
  std::vector<float> density;
  for (int64_t i = 0; i < length; ++i) {
    double sum = 0.0;
    for (int64_t j = -length; j < 2 * length; ++j) {
      const bool inside = j >= 0 && j < length;
      const bool counts = inside ? known[static_cast<size_t>(j)] : j < 0 || known.back();
      if (counts) sum += weight(i - j);
    }
    density.push_back(static_cast<float>(sum / whole));
  }
  return density;
}

}  // namespace blockscope
