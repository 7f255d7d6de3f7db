// Products of groups of rows, each group with a weight of its own, through a kernel of torch. Only
// the device knows how many rows a group has, so the host waits for nothing.
#pragma once

#include <ATen/core/Tensor.h>

namespace blockscope {

// rows [M, in], group after group; weights [G, out, in]; ends [G] int32 on the device, never
// falling, the last one M: group g has the rows from ends[g - 1] (0 for the first group) to ends[g]
// - 1.
// -> [M, out] in the type of rows: each row times the transpose of its group's weight.
using GroupedProduct = at::Tensor (*)(const at::Tensor& rows, const at::Tensor& weights,
                                      const at::Tensor& ends);

// torch's grouped product (`torch._grouped_mm`) on the current stream of the rows' device. Sizes
// `in` and `out` must be multiples of 16 bytes.
at::Tensor library_grouped_product(const at::Tensor& rows, const at::Tensor& weights,
                                   const at::Tensor& ends);

}  // namespace blockscope
