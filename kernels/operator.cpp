#include "kernels/operator.h"

#include <ATen/ops/empty.h>
#include <torch/version.h>

#include "kernels/ops.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

std::string instruction_set() { return best_tile_kernels().name; }

// blockscope.ops searches the file for this text before a torch of another version loads the
// library.
[[gnu::used]] extern const char kBuiltWithTorch[] = "blockscope-kernels torch=" TORCH_VERSION ";";

namespace meta {

at::Tensor empty(const at::Tensor& like, const Shape& shape, at::ScalarType dtype) {
  return at::empty_symint(shape, like.options().dtype(dtype));
}

at::Tensor same(const at::Tensor& x) { return empty(x, x.sym_sizes().vec(), x.scalar_type()); }

at::Tensor floats(const at::Tensor& x) { return empty(x, x.sym_sizes().vec(), at::kFloat); }

at::Tensor float_rows(const at::Tensor& x) {
  TORCH_CHECK(x.dim() > 0, "expected a tensor [..., D], got one without dimensions");
  Shape shape = x.sym_sizes().vec();
  shape.pop_back();
  return empty(x, shape, at::kFloat);
}

Sides sides(const at::Tensor& q) {
  return {same(q), floats(q), float_rows(q), floats(q), float_rows(q)};
}

SourcedSides sourced_sides(const at::Tensor& q, const at::Tensor& k_ext) {
  const Shape kv_heads = {q.sym_size(0), k_ext.sym_size(1)};
  return std::tuple_cat(sides(q), std::make_tuple(empty(q, kv_heads, at::kLong)));
}

}  // namespace meta
}  // namespace blockscope
