#include "kernels/step_operators.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/le.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sub.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/head_tasks.h"
#include "kernels/cpu/split_attention_cpu.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/operator.h"
#include "kernels/row_ops.h"
#include "kernels/shape_check.h"
#include "kernels/simd/statistics_kernels.h"
#include "kernels/step_statistics.h"
#include "kernels/torch/fallback_steps.h"

namespace blockscope {
namespace {

// Most bytes of kept weights. If they do not fit in the CPU's caches, a second walk is as fast.
constexpr int64_t kMostWeights = int64_t{64} << 20;

using Tensors2 = std::tuple<at::Tensor, at::Tensor>;
using Tensors5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor floats(const std::vector<float>& values) {
  at::Tensor result = at::empty({std::ssize(values)}, at::kFloat);
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<float>());
  return result;
}

void check_row(const char* op, const at::Tensor& x, int64_t row) {
  TORCH_CHECK(x.dim() == 4 && row >= 0 && row < x.size(0), op, ": row: expected one of the ",
              x.dim() == 4 ? x.size(0) : 0, " sequences of [S, H, B, D], got ", row);
}

/// Sequence `row` of outputs with the shape of `like`, and of their lses.
HeadAttention pair_of(const char* op, const char* name, const at::Tensor& output,
                      const at::Tensor& lse, const at::Tensor& like, int64_t row) {
  check_tensor(op, name, output, at::kFloat, like.device());
  check_tensor(op, name, lse, at::kFloat, like.device());
  check_shape(op, name, output, like.sizes());
  check_shape(op, name, lse, like.sizes().slice(0, 3));
  return {output, lse, row};
}

/// Kinds of a source's rows, [block] or [0]: none.
const uint8_t* kinds_of(const char* op, const at::Tensor& kinds, int64_t block) {
  check_tensor(op, "source_kinds", kinds, at::kByte, at::kCPU);
  if (kinds.numel() == 0) return nullptr;
  check_shape(op, "source_kinds", kinds, {block});
  TORCH_CHECK(kinds.is_contiguous(), op, ": source_kinds: expected contiguous tensors");
  const auto* first = kinds.const_data_ptr<uint8_t>();
  const auto* last = first + block;
  TORCH_CHECK(std::all_of(first, last, [](uint8_t kind) { return kind < kKindsOfRows; }), op,
              ": source_kinds: expected kinds below ", kKindsOfRows);
  return first;
}

/// What the schema gives for a value that an input is missing for; no part of another result.
at::Tensor own(const at::Tensor& value, at::IntArrayRef none, const at::Tensor& like) {
  return value.defined() ? value.clone() : at::empty(none, like.options());
}

/// Logits [R, V] on the CPU.
void check_logits(const char* op, const char* name, const at::Tensor& x, at::ScalarType dtype) {
  check_operand(op, name, x, dtype);
  check_shape(op, name, x, {-1, -1});
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op, ": ", name,
              ": expected float32, float16 or bfloat16, got ", dtype);
}

const char* row_at(const at::Tensor& x, int64_t row) {
  return static_cast<const char*>(x.const_data_ptr()) + row * x.stride(0) * x.element_size();
}

/// Fills the external output, and `out`, from the result over all keys.
void derive_external(SplitAttention& split, const at::Tensor& known, const at::Tensor& q,
                     const at::Tensor& k_ext, const at::Tensor& v_ext, const at::Tensor& ext_len,
                     const at::Tensor& k_in, const at::Tensor& v_in, double scale) {
  const at::Tensor ratio = at::sub(split.lse_internal, split.lse_external).exp_();  // [S, H, T]
  const at::Tensor whole = known.to(at::kFloat).contiguous();
  split.external = at::addcmul(whole, ratio.unsqueeze(-1), at::sub(whole, split.internal));
  split.out = known.clone();  // an operator's result is no alias of its argument
  const at::Tensor exact = at::le(ratio, 1.0).all(-1);  // [S, H]; false for NaN
  if (exact.all().item<bool>()) return;
  split.external = reuse_attention(q, k_ext, v_ext, ext_len, k_in, v_in, split.external,
                                   split.lse_external, exact, scale)
                       .external;
}

}  // namespace

RecordedAttention recorded_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const at::Tensor& ext_len,
                                     const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                                     const at::Tensor& ends, int64_t set_size, bool with_block,
                                     const at::Tensor& result) {
  constexpr const char* kOp = "recorded_attention";
  check_query(kOp, q);
  const AttentionSizes sizes = check_split_attention(kOp, q, k_ext, v_ext, k_in, v_in);
  check_tensor(kOp, "ends", ends, at::kLong, at::kCPU);
  check_shape(kOp, "ends", ends, {q.size(0), -1});
  RecordedAttention found;
  const at::Tensor rows = ends.contiguous();
  const auto* first = rows.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < q.size(0); ++s, first += rows.size(1)) {
    found.spread.ends.emplace_back(first, first + rows.size(1));
  }
  const int64_t bytes = q.size(0) * q.size(1) * q.size(2) * k_ext.size(2) * 4;
  ExternalWeights kept;
  ExternalWeights* const keep = set_size > 0 && bytes <= kMostWeights ? &kept : nullptr;
  if (result.defined()) {
    check_tensor(kOp, "result", result, q.scalar_type(), at::kCPU);
    check_shape(kOp, "result", result, q.sizes());
    ExternalSource source;
    source.values = false;
    found.split = split_attention_cpu(
        best_tile_kernels(), sizes, q, k_ext, v_ext,
        check_lengths(kOp, "ext_len", ext_len, sizes.sequences, sizes.external_keys), k_in, v_in,
        source, scale, keep, &found.spread);
    derive_external(found.split, result, q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  } else {
    found.split = split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale, keep, &found.spread);
  }
  if (set_size == 0) return found;
  const at::Tensor lse = with_block
                             ? at::logaddexp(found.split.lse_external, found.split.lse_internal)
                             : found.split.lse_external;
  found.sets = kept.defined() ? topk_sets(kept, ext_len, lse, set_size, false)
                              : topk_sets(q, k_ext, ext_len, lse, set_size, scale, false);
  return found;
}

Tensors5 step_statistics(const std::optional<at::Tensor>& external,
                         const std::optional<at::Tensor>& lse_external, const at::Tensor& internal,
                         const at::Tensor& lse_internal,
                         const std::optional<at::Tensor>& last_external,
                         const std::optional<at::Tensor>& last_internal,
                         const std::vector<at::Tensor>& sources,
                         const std::vector<at::Tensor>& source_lses,
                         const std::vector<at::Tensor>& source_kinds, int64_t row) {
  constexpr const char* kOp = "step_statistics";
  check_row(kOp, internal, row);
  TORCH_CHECK(sources.size() == source_lses.size(), kOp, ": source_lses: expected ", sources.size(),
              " of them, got ", source_lses.size());
  TORCH_CHECK(sources.size() == source_kinds.size(), kOp, ": source_kinds: expected ",
              sources.size(), " of them, got ", source_kinds.size());
  TORCH_CHECK(external.has_value() == lse_external.has_value(), kOp,
              ": expected external and lse_external, or neither");
  const auto pair = [&](const char* name, const at::Tensor& output, const at::Tensor& lse) {
    return pair_of(kOp, name, output, lse, internal, row);
  };
  LayerStep step;
  step.internal = pair("internal", internal, lse_internal);
  if (external) step.external = pair("external", *external, *lse_external);
  // Only the outputs of the last step are used.
  if (last_external) step.last_external = pair("last_external", *last_external, lse_internal);
  if (last_internal) step.last_internal = pair("last_internal", *last_internal, lse_internal);
  TORCH_CHECK(external || sources.empty(), kOp, ": sources: expected none without external");
  for (size_t i = 0; i < sources.size(); ++i) {
    step.source.push_back(pair("sources", sources[i], source_lses[i]));
    step.source_kinds.push_back(kinds_of(kOp, source_kinds[i], internal.size(2)));
  }
  const HeadShape shape{internal.size(1), internal.size(2), internal.size(3)};
  const LayerStatistics found = layer_statistics(step, shape);
  return {own(found.external_mass, {0}, internal), own(found.similarity_external, {0}, internal),
          own(found.similarity_internal, {0}, internal),
          own(found.reuse_error, {0, shape.heads, 4}, internal),
          own(found.kept, {0, shape.heads, kKindsOfRows, 5}, internal)};
}

Tensors2 step_gaps(const at::Tensor& x, const at::Tensor& first, int64_t row) {
  constexpr const char* kOp = "step_gaps";
  check_row(kOp, x, row);
  check_query(kOp, x, x.device());
  check_tensor(kOp, "first", first, x.scalar_type(), x.device());
  check_shape(kOp, "first", first, x.sizes());
  const RowGaps found = row_gaps(x, row, FirstRows(first, row));
  return {found.gap, found.block_gap};
}

at::Tensor row_log_sum_exp(const at::Tensor& x) {
  if (const DeviceScope device{x}) return fallback::row_log_sum_exp(x);
  check_logits("row_log_sum_exp", "x", x, x.scalar_type());
  at::Tensor lse = at::empty({x.size(0)}, at::kDouble);
  auto* out = lse.mutable_data_ptr<double>();
  for_each_head(x.size(0), x.size(1), [&](int64_t i) {
    out[i] = statistics_kernels().log_sum_exp(element_of(x), row_at(x, i), x.size(1));
  });
  return lse;
}

at::Tensor row_divergence(const at::Tensor& first, const at::Tensor& first_lse,
                          const at::Tensor& now, const at::Tensor& wanted) {
  constexpr const char* kOp = "row_divergence";
  check_logits(kOp, "first", first, first.scalar_type());
  check_logits(kOp, "now", now, first.scalar_type());
  check_shape(kOp, "now", now, first.sizes());
  check_tensor(kOp, "first_lse", first_lse, at::kDouble, at::kCPU);
  check_shape(kOp, "first_lse", first_lse, {first.size(0)});
  check_tensor(kOp, "wanted", wanted, at::kBool, at::kCPU);
  check_shape(kOp, "wanted", wanted, {first.size(0)});
  at::Tensor divergence = at::empty({first.size(0)}, at::kFloat);
  auto* out = divergence.mutable_data_ptr<float>();
  const at::Tensor lses = first_lse.contiguous();
  const at::Tensor flags = wanted.contiguous();
  const auto* lse = lses.const_data_ptr<double>();
  const auto* flag = flags.const_data_ptr<bool>();
  const int64_t vocab = first.size(1);
  for_each_head(first.size(0), vocab, [&](int64_t i) {
    out[i] = std::numeric_limits<float>::quiet_NaN();
    if (!flag[i]) return;
    const StatisticsKernels& kernels = statistics_kernels();
    const Element element = element_of(now);
    const double now_lse = kernels.log_sum_exp(element, row_at(now, i), vocab);
    out[i] = static_cast<float>(
        kernels.divergence(element, row_at(first, i), lse[i], row_at(now, i), now_lse, vocab));
  });
  return divergence;
}

Tensors2 best_token_rows(const at::Tensor& logits) {
  check_logits("best_token_rows", "logits", logits, logits.scalar_type());
  const BestTokens best = best_tokens(logits);
  at::Tensor token = at::empty({logits.size(0)}, at::kInt);
  std::copy(best.token.begin(), best.token.end(), token.mutable_data_ptr<int32_t>());
  return {token, floats(best.probability)};
}

namespace {

/// The results in the order of the schema. Sets that were not asked for are empty.
std::vector<at::Tensor> recorded_real(const at::Tensor& q, const at::Tensor& k_ext,
                                      const at::Tensor& v_ext, const at::Tensor& ext_len,
                                      const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                                      const at::Tensor& ends, int64_t set_size, bool with_block,
                                      const OptionalTensor& result) {
  RecordedAttention r = recorded_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale, ends,
                                           set_size, with_block, result.value_or(at::Tensor()));
  std::vector<at::Tensor> found{
      r.split.out.contiguous(), r.split.external,     r.split.lse_external,
      r.split.internal,         r.split.lse_internal, r.spread.entropy,
      r.spread.largest,         r.spread.range,       r.spread.key,
      r.spread.offset};
  if (set_size > 0) {
    found.insert(found.end(), {r.sets.index, r.sets.probability, r.sets.union_size});
  }
  return found;
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  m.def(
      "recorded_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor k_in, "
      "Tensor v_in, float scale, Tensor ends, int set_size=0, bool with_block=False, "
      "Tensor? result=None) -> Tensor[]");
  m.def(
      "step_statistics(Tensor? external, Tensor? lse_external, Tensor internal, "
      "Tensor lse_internal, Tensor? last_external, Tensor? last_internal, Tensor[] sources, "
      "Tensor[] source_lses, Tensor[] source_kinds, "
      "int row) -> (Tensor external_mass, Tensor similarity_external, Tensor similarity_internal, "
      "Tensor errors, Tensor kept)");
  m.def("step_gaps(Tensor x, Tensor first, int row) -> (Tensor gap, Tensor block_gap)");
  m.def("row_log_sum_exp(Tensor x) -> Tensor");
  m.def("row_divergence(Tensor first, Tensor first_lse, Tensor now, Tensor wanted) -> Tensor");
  m.def("best_token_rows(Tensor logits) -> (Tensor token, Tensor probability)");
}

TORCH_LIBRARY_IMPL(blockscope, CUDA, m) {
  m.impl("step_statistics", step_statistics);
  m.impl("step_gaps", step_gaps);
}

TORCH_LIBRARY_IMPL(blockscope, CPU, m) {
  m.impl("recorded_attention", recorded_real);
  m.impl("step_statistics", step_statistics);
  m.impl("step_gaps", step_gaps);
  m.impl("row_log_sum_exp", row_log_sum_exp);
  m.impl("row_divergence", row_divergence);
  m.impl("best_token_rows", best_token_rows);
}

}  // namespace
}  // namespace blockscope
