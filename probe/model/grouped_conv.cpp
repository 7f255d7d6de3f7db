#include "probe/model/grouped_conv.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace blockscope {
namespace {

/// x [S, T, hidden_size], kernel [S, T, taps, groups, group] -> the mixed rows.
at::Tensor mixed(const at::Tensor& x, const at::Tensor& kernel) {
  const at::Tensor rows = x.unflatten(-1, {kernel.size(3), kernel.size(4)});
  const int64_t length = rows.size(1);
  at::Tensor sum = kernel.select(2, 0) * rows;
  for (int64_t tap = 1; tap < std::min(kernel.size(2), length); ++tap) {
    sum.narrow(1, tap, length - tap)
        .addcmul_(kernel.select(2, tap).narrow(1, tap, length - tap),
                  rows.narrow(1, 0, length - tap));
  }
  return sum.flatten(-2);
}

}  // namespace

GroupedConv::GroupedConv(const at::Tensor& base, at::Tensor projection, int64_t group)
    : base_(base.unflatten(-1, {base.size(-1) / group, group})),
      projection_(std::move(projection)) {}

at::Tensor GroupedConv::around(const at::Tensor& x,
                               const std::function<at::Tensor(const at::Tensor&)>& part) const {
  if (!defined()) return part(x);
  const at::Tensor delta =
      projection_(x).unflatten(-1, {2, base_.size(1), base_.size(2)}).unsqueeze(-1);
  const at::Tensor kernel = base_ + delta;  // [S, T, 2, taps, groups, group]
  return mixed(part(mixed(x, kernel.select(2, 0))), kernel.select(2, 1));
}

}  // namespace blockscope
