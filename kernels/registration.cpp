// Registers the operators with the dispatcher: schemas, the functions of ops.h and row_ops.h, and
// Meta kernels that only compute shapes, so that torch.compile and FakeTensor can trace calls.
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <torch/version.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops.h"
#include "kernels/row_ops.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

std::string instruction_set() { return best_tile_kernels().name; }

// blockscope.ops looks for it in the file, before a torch of another version loads the library.
[[gnu::used]] extern const char kBuiltWithTorch[] = "blockscope-kernels torch=" TORCH_VERSION ";";

namespace {

using at::SymInt;
using at::Tensor;
using Tensors2 = std::tuple<Tensor, Tensor>;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensors6 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// --- CPU and CUDA: the functions of ops.h look at the device themselves

Tensors5 split_real(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                    const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in, double scale) {
  SplitAttention r = split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  return {r.out.contiguous(), r.external, r.lse_external, r.internal, r.lse_internal};
}

Tensors6 reuse_real(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                    const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in,
                    const Tensor& cached_external, const Tensor& cached_lse,
                    const Tensor& reuse_mask, double scale) {
  ReuseAttention r = reuse_attention(q, k_ext, v_ext, ext_len, k_in, v_in, cached_external,
                                     cached_lse, reuse_mask, scale);
  return {r.out.contiguous(), r.external, r.lse_external, r.internal, r.lse_internal, r.keys_read};
}

Tensors2 merge_real(at::TensorList outputs, at::TensorList lses) {
  MergedAttention r = merge_attention(outputs.vec(), lses.vec());
  return {r.out, r.lse};
}

Tensors2 block_topk_real(const Tensor& q, const Tensor& k_ext, const Tensor& ext_len,
                         const Tensor& lse, int64_t k, double scale) {
  TopK r = block_topk(q, k_ext, ext_len, lse, k, scale);
  return {r.index, r.probability};
}

Tensors3 token_topk_real(const Tensor& q, const Tensor& k_ext, const Tensor& ext_len,
                         const Tensor& lse, int64_t k, double scale) {
  TokenTopK r = token_topk(q, k_ext, ext_len, lse, k, scale);
  return {r.index, r.probability, r.union_size};
}

using OptionalTensor = std::optional<Tensor>;

Tensors6 gather_real(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                     const Tensor& ext_len, const Tensor& index, const Tensor& k_in,
                     const Tensor& v_in, double scale, const OptionalTensor& dense,
                     const OptionalTensor& residual, const OptionalTensor& lse_residual) {
  const auto given = [](const OptionalTensor& tensor) { return tensor.value_or(Tensor()); };
  GatherAttention r = gather_attention(q, k_ext, v_ext, ext_len, index, k_in, v_in, scale,
                                       given(dense), given(residual), given(lse_residual));
  return {r.out.contiguous(), r.external, r.lse_external, r.internal, r.lse_internal, r.keys_read};
}

Tensors2 unselected_real(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                         const Tensor& ext_len, const Tensor& index, double scale) {
  PartialAttention r = unselected_attention(q, k_ext, v_ext, ext_len, index, scale);
  return {r.output, r.lse};
}

Tensors2 page_bounds_real(const Tensor& k_ext, const Tensor& ext_len, int64_t page_size) {
  PageBounds r = page_bounds(k_ext, ext_len, page_size);
  return {r.max, r.min};
}

Tensor page_scores_real(const Tensor& q, const Tensor& page_max, const Tensor& page_min,
                        const Tensor& ext_len, int64_t page_size) {
  return page_scores(q, {page_max, page_min}, ext_len, page_size);
}

Tensor token_page_scores_real(const Tensor& q, const Tensor& page_max, const Tensor& page_min,
                              const Tensor& ext_len, int64_t page_size) {
  return token_page_scores(q, {page_max, page_min}, ext_len, page_size);
}

// A fallback's result (fallback_operators.h) may lie as its argument does.

Tensor norm_real(const Tensor& x, const Tensor& weight, double eps, bool weight_first) {
  return rms_norm_rows(x, weight, eps, weight_first).contiguous();
}

Tensors2 add_norm_real(const Tensor& x, const Tensor& y, const Tensor& weight, double eps,
                       bool weight_first) {
  SumAndNorm r = add_rms_norm_rows(x, y, weight, eps, weight_first);
  return {r.sum.contiguous(), r.norm.contiguous()};
}

Tensors2 rotate_real(const Tensor& q, const Tensor& k, const OptionalTensor& q_weight,
                     const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin,
                     double eps, bool weight_first) {
  const std::vector<Tensor> r =
      norm_rotate_rows({{q, q_weight.value_or(Tensor()), eps, weight_first},
                        {k, k_weight.value_or(Tensor()), eps, weight_first}},
                       cos, sin);
  return {r[0].contiguous(), r[1].contiguous()};
}

Tensor gate_real(const Tensor& gate, const Tensor& up) {
  return silu_multiply(gate, up).contiguous();
}

void register_real(torch::Library& m) {
  m.impl("split_attention", split_real);
  m.impl("reuse_attention", reuse_real);
  m.impl("prefill_attention", prefill_attention);
  m.impl("merge_attention", merge_real);
  m.impl("block_topk", block_topk_real);
  m.impl("token_topk", token_topk_real);
  m.impl("gather_attention", gather_real);
  m.impl("unselected_attention", unselected_real);
  m.impl("page_bounds", page_bounds_real);
  m.impl("page_scores", page_scores_real);
  m.impl("token_page_scores", token_page_scores_real);
  m.impl("cross_step_similarity", cross_step_similarity);
  m.impl("rms_norm_rows", norm_real);
  m.impl("add_rms_norm_rows", add_norm_real);
  m.impl("norm_rotate_rows", rotate_real);
  m.impl("silu_multiply", gate_real);
}

// --- Meta: shapes and dtypes of kernels/ops.h, symbolic sizes

using SymShape = std::vector<SymInt>;

Tensor empty_like_shape(const Tensor& like, const SymShape& shape, at::ScalarType dtype) {
  return at::empty_symint(shape, like.options().dtype(dtype));
}

SymShape row_shape(const Tensor& output) {
  TORCH_CHECK(output.dim() > 0, "expected a tensor [..., D], got one without dimensions");
  SymShape shape = output.sym_sizes().vec();
  shape.pop_back();
  return shape;
}

Tensor float_output(const Tensor& q) {
  return empty_like_shape(q, q.sym_sizes().vec(), at::kFloat);
}

Tensor float_rows(const Tensor& q) { return empty_like_shape(q, row_shape(q), at::kFloat); }

Tensors5 split_meta(const Tensor& q, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, double) {
  return {empty_like_shape(q, q.sym_sizes().vec(), q.scalar_type()), float_output(q), float_rows(q),
          float_output(q), float_rows(q)};
}

Tensors6 reuse_meta(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                    const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in, const Tensor&,
                    const Tensor&, const Tensor&, double scale) {
  const SymShape kv_heads = {q.sym_size(0), k_ext.sym_size(1)};
  return std::tuple_cat(split_meta(q, k_ext, v_ext, ext_len, k_in, v_in, scale),
                        std::make_tuple(empty_like_shape(q, kv_heads, at::kLong)));
}

Tensor prefill_meta(const Tensor& q, const Tensor&, const Tensor&, const Tensor&, int64_t, double,
                    int64_t) {
  return empty_like_shape(q, q.sym_sizes().vec(), q.scalar_type());
}

Tensors2 merge_meta(at::TensorList outputs, at::TensorList) {
  TORCH_CHECK(!outputs.empty(), "merge_attention: outputs: expected at least one, got none");
  const Tensor& first = outputs[0];
  return {empty_like_shape(first, first.sym_sizes().vec(), first.scalar_type()), float_rows(first)};
}

Tensors2 block_topk_meta(const Tensor& q, const Tensor& k_ext, const Tensor&, const Tensor&,
                         int64_t k, double) {
  const SymShape shape = {q.sym_size(0), k_ext.sym_size(1), SymInt(k)};
  return {empty_like_shape(q, shape, at::kInt), empty_like_shape(q, shape, at::kFloat)};
}

Tensors3 token_topk_meta(const Tensor& q, const Tensor& k_ext, const Tensor&, const Tensor&,
                         int64_t k, double) {
  const SymShape shape = {q.sym_size(0), k_ext.sym_size(1), q.sym_size(2), SymInt(k)};
  return {empty_like_shape(q, shape, at::kInt), empty_like_shape(q, shape, at::kFloat),
          empty_like_shape(q, {q.sym_size(0), k_ext.sym_size(1)}, at::kInt)};
}

Tensors6 gather_meta(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                     const Tensor& ext_len, const Tensor&, const Tensor& k_in, const Tensor& v_in,
                     double scale, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor&) {
  const SymShape kv_heads = {q.sym_size(0), k_ext.sym_size(1)};
  return std::tuple_cat(split_meta(q, k_ext, v_ext, ext_len, k_in, v_in, scale),
                        std::make_tuple(empty_like_shape(q, kv_heads, at::kLong)));
}

Tensors2 unselected_meta(const Tensor& q, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, double) {
  return {float_output(q), float_rows(q)};
}

Tensors2 page_bounds_meta(const Tensor& k_ext, const Tensor&, int64_t page_size) {
  TORCH_CHECK(k_ext.dim() == 4 && page_size > 0,
              "page_bounds: expected k_ext [S, K, N, D] and page_size > 0, got ", k_ext.dim(),
              " dimensions and ", page_size);
  SymShape shape = k_ext.sym_sizes().vec();
  shape[2] = (shape[2] + page_size - 1) / page_size;
  return {empty_like_shape(k_ext, shape, k_ext.scalar_type()),
          empty_like_shape(k_ext, shape, k_ext.scalar_type())};
}

Tensor page_scores_meta(const Tensor& q, const Tensor& page_max, const Tensor&, const Tensor&,
                        int64_t) {
  return empty_like_shape(q, {q.sym_size(0), page_max.sym_size(1), page_max.sym_size(2)},
                          at::kFloat);
}

Tensor token_page_scores_meta(const Tensor& q, const Tensor& page_max, const Tensor&, const Tensor&,
                              int64_t) {
  return empty_like_shape(
      q, {q.sym_size(0), page_max.sym_size(1), q.sym_size(2), page_max.sym_size(2)}, at::kFloat);
}

Tensor similarity_meta(const Tensor& a, const Tensor&) { return float_rows(a); }

Tensor same_shape(const Tensor& x) {
  return empty_like_shape(x, x.sym_sizes().vec(), x.scalar_type());
}

Tensor norm_meta(const Tensor& x, const Tensor&, double, bool) { return same_shape(x); }

Tensors2 add_norm_meta(const Tensor& x, const Tensor&, const Tensor&, double, bool) {
  return {same_shape(x), same_shape(x)};
}

Tensors2 rotate_meta(const Tensor& q, const Tensor& k, const OptionalTensor&, const OptionalTensor&,
                     const Tensor&, const Tensor&, double, bool) {
  return {same_shape(q), same_shape(k)};
}

Tensor gate_meta(const Tensor& gate, const Tensor&) { return same_shape(gate); }

}  // namespace

TORCH_LIBRARY(blockscope, m) {
  // Outputs never alias inputs. Inductor must keep strides: kernels read rows whose last dimension
  // is contiguous.
  const auto def = [&m](const char* schema) {
    m.def(schema, {at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides});
  };
  def("split_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor k_in, "
      "Tensor v_in, float scale) -> (Tensor out, Tensor external, Tensor lse_external, "
      "Tensor internal, Tensor lse_internal)");
  def("reuse_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor k_in, "
      "Tensor v_in, Tensor cached_external, Tensor cached_lse, Tensor reuse_mask, float scale) -> "
      "(Tensor out, Tensor external, Tensor lse_external, Tensor internal, Tensor lse_internal, "
      "Tensor keys_read)");
  def("prefill_attention(Tensor q, Tensor k, Tensor v, Tensor len, int block_length, float scale, "
      "int query_start=0) -> Tensor");
  def("merge_attention(Tensor[] outputs, Tensor[] lses) -> (Tensor out, Tensor lse)");
  def("block_topk(Tensor q, Tensor k_ext, Tensor ext_len, Tensor lse, int k, float scale) -> "
      "(Tensor index, Tensor probability)");
  def("token_topk(Tensor q, Tensor k_ext, Tensor ext_len, Tensor lse, int k, float scale) -> "
      "(Tensor index, Tensor probability, Tensor union_size)");
  def("gather_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor index, "
      "Tensor k_in, Tensor v_in, float scale, Tensor? dense=None, Tensor? residual=None, "
      "Tensor? lse_residual=None) -> (Tensor out, Tensor external, Tensor lse_external, "
      "Tensor internal, Tensor lse_internal, Tensor keys_read)");
  def("unselected_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor index, "
      "float scale) -> (Tensor output, Tensor lse)");
  def("page_bounds(Tensor k_ext, Tensor ext_len, int page_size) -> (Tensor max, Tensor min)");
  def("page_scores(Tensor q, Tensor page_max, Tensor page_min, Tensor ext_len, int page_size) -> "
      "Tensor");
  def("token_page_scores(Tensor q, Tensor page_max, Tensor page_min, Tensor ext_len, "
      "int page_size) -> Tensor");
  def("cross_step_similarity(Tensor a, Tensor b) -> Tensor");
  def("rms_norm_rows(Tensor x, Tensor weight, float eps, bool weight_first) -> Tensor");
  def("add_rms_norm_rows(Tensor x, Tensor y, Tensor weight, float eps, bool weight_first) -> "
      "(Tensor sum, Tensor norm)");
  def("norm_rotate_rows(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor cos, "
      "Tensor sin, float eps, bool weight_first) -> (Tensor q, Tensor k)");
  def("silu_multiply(Tensor gate, Tensor up) -> Tensor");
}

TORCH_LIBRARY_IMPL(blockscope, CPU, m) { register_real(m); }
TORCH_LIBRARY_IMPL(blockscope, CUDA, m) { register_real(m); }

TORCH_LIBRARY_IMPL(blockscope, Meta, m) {
  m.impl("split_attention", split_meta);
  m.impl("reuse_attention", reuse_meta);
  m.impl("prefill_attention", prefill_meta);
  m.impl("merge_attention", merge_meta);
  m.impl("block_topk", block_topk_meta);
  m.impl("token_topk", token_topk_meta);
  m.impl("gather_attention", gather_meta);
  m.impl("unselected_attention", unselected_meta);
  m.impl("page_bounds", page_bounds_meta);
  m.impl("page_scores", page_scores_meta);
  m.impl("token_page_scores", token_page_scores_meta);
  m.impl("cross_step_similarity", similarity_meta);
  m.impl("rms_norm_rows", norm_meta);
  m.impl("add_rms_norm_rows", add_norm_meta);
  m.impl("norm_rotate_rows", rotate_meta);
  m.impl("silu_multiply", gate_meta);
}

}  // namespace blockscope
