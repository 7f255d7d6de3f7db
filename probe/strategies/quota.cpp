#include "probe/strategies/quota.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace blockscope {
namespace {

constexpr double kLastTimestep = 1e-3;  // Dream's eps

}  // namespace

int64_t even_quota(int64_t block_length, int64_t steps, int64_t step) {
  return block_length / steps + (step < block_length % steps ? 1 : 0);
}

int64_t carried_quota(int64_t block_length, int64_t chosen, int64_t steps, int64_t step) {
  const int64_t whole = std::min(step + 1, steps);
  const int64_t due =
      block_length / steps * whole + std::min(whole, block_length % steps);  // even_quota, summed
  return std::max<int64_t>(due - chosen, 0);
}

int64_t linear_quota(int64_t masks, int64_t steps, int64_t step) {
  if (step + 1 >= steps) return masks;
  const at::Tensor timesteps = at::linspace(1.0, kLastTimestep, steps + 1, at::kFloat);
  const float* time = timesteps.const_data_ptr<float>();
  const float share = 1.0F - time[step + 1] / time[step];
  return static_cast<int64_t>(static_cast<float>(masks) * share);
}

}  // namespace blockscope
