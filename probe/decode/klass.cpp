#include "probe/decode/klass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace blockscope {
namespace {

constexpr double kEpsilon = 1e-12;

}  // namespace

std::vector<double> KlassMemory::update(int64_t block, const at::Tensor& probability,
                                        const std::vector<bool>& predicted) {
  if (block != block_) {
    block_ = block;
    previous_ = at::zeros_like(probability);
    kl_.assign(static_cast<size_t>(probability.size(0)), {});
  }
  const at::Tensor divergence =
      (probability * ((probability + kEpsilon).log() - (previous_ + kEpsilon).log()))
          .sum(-1)
          .contiguous();
  const double* data = divergence.const_data_ptr<double>();
  std::vector<double> kl(data, data + divergence.numel());
  for (size_t p = 0; p < kl.size(); ++p) {
    if (!predicted.empty() && !predicted[p]) {
      kl[p] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const auto row = static_cast<int64_t>(p);
    previous_[row].copy_(probability[row]);
    kl_[p].push_back(kl[p]);
  }
  return kl;
}

std::vector<bool> KlassMemory::stable(double threshold, int64_t history) const {
  std::vector<bool> result;
  for (const std::vector<double>& kl : kl_) {
    const bool long_enough = static_cast<int64_t>(kl.size()) >= history;
    result.push_back(long_enough && std::all_of(kl.end() - history, kl.end(),
                                                [&](double x) { return x < threshold; }));
  }
  return result;
}

std::vector<int64_t> select_klass(const std::vector<double>& confidence,
                                  const std::vector<bool>& stable, const std::vector<bool>& masked,
                                  double threshold, int64_t due) {
  std::vector<int64_t> ready;
  std::vector<int64_t> order;
  for (size_t p = 0; p < masked.size(); ++p) {
    if (!masked[p]) continue;
    order.push_back(static_cast<int64_t>(p));
    if (stable[p] && confidence[p] > threshold) ready.push_back(static_cast<int64_t>(p));
  }
  if (!ready.empty()) return ready;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return confidence[static_cast<size_t>(a)] > confidence[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(due)));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace blockscope
