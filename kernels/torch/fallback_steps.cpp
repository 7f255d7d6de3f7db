#include "kernels/torch/fallback_steps.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "kernels/torch/fallback_operators.h"

namespace blockscope::fallback {
namespace {

/// mean_i cos(a_i, b_i) of [H, B, D] -> [H]; rows with NaN are left out.
at::Tensor mean_similarity(const HeadAttention& a, const HeadAttention& b) {
  return cross_step_similarity(a.outputs, b.outputs).nanmean(-1);
}

/// The weight of the external side in the merge, [H, B].
at::Tensor share_of(const at::Tensor& lse_external, const at::Tensor& lse_internal) {
  return (lse_external - lse_internal)
      .sigmoid()
      .masked_fill(lse_external == -std::numeric_limits<float>::infinity(), 0.0);
}

at::Tensor merged(const at::Tensor& internal, const at::Tensor& share, const at::Tensor& external) {
  return internal + share.unsqueeze(-1) * (external - internal);
}

/// The sums of one source: into errors [H, 4], and into kept [H, kinds, 5] if `kinds` is given.
void compare_source(const LayerStep& step, const HeadAttention& source, const at::Tensor& share,
                    const uint8_t* kinds, const at::Tensor& errors, const at::Tensor& kept) {
  const at::Tensor& internal = step.internal.outputs;
  const at::Tensor& external = step.external.outputs;
  const at::Tensor source_share = share_of(source.lses, step.internal.lses);
  const at::Tensor valid = (share + source_share).isnan().logical_not();  // [H, B]
  const auto of_valid = [&](const at::Tensor& x) { return at::where(valid.unsqueeze(-1), x, 0.0); };
  const at::Tensor ref = of_valid(merged(internal, share, external));
  const at::Tensor got = of_valid(merged(internal, source_share, source.outputs));
  const at::Tensor squared = (got - ref).square().sum(-1);  // [H, B]
  const at::Tensor reference = ref.square().sum(-1);
  errors.copy_(at::stack({squared.sum(-1), (got - ref).abs().sum({-1, -2}), reference.sum(-1),
                          (ref * got).sum({-1, -2})},
                         -1));
  if (kinds == nullptr) return;
  const at::Tensor change = source.lses - step.external.lses;
  const at::Tensor known = valid.logical_and(change.isfinite());
  const at::Tensor kind =
      at::tensor(std::vector<int64_t>(kinds, kinds + internal.size(1)), at::kLong)
          .to(change.device());
  const at::Tensor values =
      at::stack({at::ones_like(change), cross_step_similarity(source.outputs, external),
                 change.abs(), squared, reference},
                -1);  // [H, B, 5]
  for (int64_t k = 0; k < kKindsOfRows; ++k) {
    const at::Tensor counted = known.logical_and(kind == k).unsqueeze(-1);
    kept.select(1, k).copy_(at::where(counted, values, 0.0).sum(1));
  }
}

at::Tensor unit(const at::Tensor& x) {
  const at::Tensor norm = x.square().sum(-1, /*keepdim=*/true).sqrt();
  return x / norm.clamp_min(1e-30);
}

}  // namespace

LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape) {
  LayerStatistics result;
  if (step.first_query != nullptr) {
    result.query = blockscope::row_gaps(step.query, step.row, *step.first_query);
  }
  const bool last = step.last_internal.defined();
  if (last) result.similarity_internal = mean_similarity(step.internal, step.last_internal);
  if (!step.external.defined()) return result;
  const at::Tensor share = share_of(step.external.lses, step.internal.lses);
  result.external_mass = share.nanmean(-1);
  if (last) result.similarity_external = mean_similarity(step.external, step.last_external);
  const auto options = step.internal.outputs.options();
  const int64_t sources = std::ssize(step.source);
  result.reuse_error = at::empty({sources, shape.heads, 4}, options);
  result.kept = at::full({std::ssize(step.source_kinds), shape.heads, kKindsOfRows, 5},
                         std::numeric_limits<float>::quiet_NaN(), options);
  for (int64_t t = 0; t < sources; ++t) {
    const auto at = static_cast<size_t>(t);
    const uint8_t* kinds = at < step.source_kinds.size() ? step.source_kinds[at] : nullptr;
    compare_source(step, step.source[at], share, kinds, result.reuse_error.select(0, t),
                   kinds == nullptr ? at::Tensor() : result.kept.select(0, t));
  }
  return result;
}

RowGaps row_gaps(const at::Tensor& x, int64_t row, const at::Tensor& first) {
  const at::Tensor gap = unit(x.select(0, row).to(at::kFloat)) - unit(first.to(at::kFloat));
  const at::Tensor length = gap.square().sum(-1).sqrt();  // [H, B]
  const at::Tensor valid = length.isnan().logical_not();
  const at::Tensor rows = valid.sum(-1);
  return {length.nansum(-1) / rows,
          at::where(valid.unsqueeze(-1), gap, 0.0).sum(1).square().sum(-1).sqrt() / rows};
}

at::Tensor row_log_sum_exp(const at::Tensor& x) {
  return x.to(at::kFloat).logsumexp(-1).to(at::kDouble);
}

at::Tensor row_divergence(const at::Tensor& first, const at::Tensor& first_lse,
                          const at::Tensor& now) {
  const at::Tensor x = first.to(at::kFloat);
  const at::Tensor origin = first_lse.to(at::kFloat);
  const at::Tensor p = (x - origin.unsqueeze(-1)).exp();
  const at::Tensor terms = at::where(p > 0.0, p * (x - now.to(at::kFloat)), 0.0);
  // The probabilities were computed with the rounded lse.
  const at::Tensor factor = (origin.to(at::kDouble) - first_lse).exp();
  return (terms.sum(-1, false, at::kDouble) * factor + (row_log_sum_exp(now) - first_lse))
      .to(at::kFloat);
}

}  // namespace blockscope::fallback
