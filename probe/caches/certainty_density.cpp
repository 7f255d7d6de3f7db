#include "probe/caches/certainty_density.h"

#include <cmath>
#include <cstdlib>

namespace blockscope {

std::vector<float> certainty_density(const std::vector<bool>& known, double sigma,
                                     const AnswerRange& range) {
  const auto length = static_cast<int64_t>(known.size());
  std::vector<float> density(static_cast<size_t>(range.count), 1.0F);
  if (length == 0) return density;
  std::vector<double> weight;  // by distance
  for (int64_t d = 0; d <= 3 * length; ++d) {
    const double x = static_cast<double>(d) / sigma;
    weight.push_back(std::exp(-0.5 * x * x));
  }
  double whole = weight.front() + weight.back();
  for (int64_t d = 1; d < 3 * length; ++d) whole += 2.0 * weight[static_cast<size_t>(d)];
  for (int64_t p = 0; p < range.count; ++p) {
    const int64_t i = range.begin + p;
    if (i < 0 || i >= length) continue;
    double sum = 0.0;
    for (int64_t j = -length; j < 2 * length; ++j) {
      const bool inside = j >= 0 && j < length;
      const bool counts = inside ? known[static_cast<size_t>(j)] : j < 0 || known.back();
      if (counts) sum += weight[static_cast<size_t>(std::abs(i - j))];
    }
    density[static_cast<size_t>(p)] = static_cast<float>(sum / whole);
  }
  return density;
}

}  // namespace blockscope
