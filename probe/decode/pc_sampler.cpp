#include "probe/decode/pc_sampler.h"

#include <algorithm>
#include <cmath>

namespace blockscope {

std::vector<float> pc_scores(const std::vector<int64_t>& token,
                             const std::vector<float>& confidence, const std::vector<float>& share,
                             double lambda, double alpha) {
  constexpr float kEpsilon = 1e-9F;
  std::vector<float> scores;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] < 0) {
      scores.push_back(0.0F);
      continue;
    }
    const float frequency = share[static_cast<size_t>(token[i])];
    const float debiased = -confidence[i] * std::log(frequency + kEpsilon);
    const float position = std::exp(static_cast<float>(-lambda) * static_cast<float>(i));
    scores.push_back(position * std::min(debiased, static_cast<float>(alpha)));
  }
  return scores;
}

}  // namespace blockscope
