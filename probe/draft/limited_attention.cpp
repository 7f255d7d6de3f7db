#include "probe/draft/limited_attention.h"

#include <ATen/ATen.h>

#include <vector>

#include "kernels/ops.h"

namespace blockscope {
namespace {

at::Tensor count_of(int64_t keys) { return at::full({1}, keys, at::kLong); }

/// One sequence, tensors [1, ...]. Most keys are common to all rows and are read once. The others
/// are at most a block's.
AttentionParts of_sequence(const AttentionInput& input, const at::Tensor& key,
                           const at::Tensor& value, const RowLimits& limits) {
  const int64_t rows = input.q.size(2);
  const int64_t length = key.size(2);
  const int64_t common = std::min(limits.first_key(rows - 1, length), length);
  const at::Tensor no_key = input.k.narrow(2, 0, 0);
  const at::Tensor no_value = input.v.narrow(2, 0, 0);
  const SplitAttention shared = split_attention(
      input.q, key.narrow(2, common, length - common), value.narrow(2, common, length - common),
      count_of(length - common), limits.causal ? no_key : input.k,
      limits.causal ? no_value : input.v, input.scale);
  std::vector<at::Tensor> external, lse_external, internal, lse_internal;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = std::min(limits.first_key(row, length), length);
    const int64_t seen = limits.causal ? row + 1 : 0;
    const SplitAttention own =
        split_attention(input.q.narrow(2, row, 1), key.narrow(2, first, common - first),
                        value.narrow(2, first, common - first), count_of(common - first),
                        input.k.narrow(2, 0, seen), input.v.narrow(2, 0, seen), input.scale);
    external.push_back(own.external);
    lse_external.push_back(own.lse_external);
    internal.push_back(own.internal);
    lse_internal.push_back(own.lse_internal);
  }
  AttentionParts parts;
  const MergedAttention before = merge_attention({shared.external, at::cat(external, 2)},
                                                 {shared.lse_external, at::cat(lse_external, 2)});
  parts.external = before.out;
  parts.lse_external = before.lse;
  parts.internal = limits.causal ? at::cat(internal, 2) : shared.internal;
  parts.lse_internal = limits.causal ? at::cat(lse_internal, 2) : shared.lse_internal;
  parts.out =
      merge_attention({parts.external, parts.internal}, {parts.lse_external, parts.lse_internal})
          .out.to(input.q.scalar_type());
  return parts;
}

}  // namespace

AttentionParts limited_attention(const AttentionInput& input, const ExternalKeys& external,
                                 const RowLimits& limits) {
  std::vector<AttentionParts> all;
  for (int64_t s = 0; s < input.q.size(0); ++s) {
    const auto of = [s](const at::Tensor& batch) { return batch.narrow(0, s, 1); };
    const at::Tensor q = of(input.q);
    const at::Tensor k = of(input.k);
    const at::Tensor v = of(input.v);
    const int64_t length = external.length[s].item<int64_t>();
    all.push_back(of_sequence({input.layer, q, k, v, input.scale},
                              of(external.key).narrow(2, 0, length),
                              of(external.value).narrow(2, 0, length), limits));
  }
  const auto joined = [&all](at::Tensor AttentionParts::*part) {
    std::vector<at::Tensor> tensors;
    for (const AttentionParts& parts : all) tensors.push_back(parts.*part);
    return tensors.size() == 1 ? tensors.front() : at::cat(tensors);
  };
  AttentionParts parts;
  for (const auto part :
       {&AttentionParts::out, &AttentionParts::external, &AttentionParts::lse_external,
        &AttentionParts::internal, &AttentionParts::lse_internal}) {
    parts.*part = joined(part);
  }
  return parts;
}

ExternalKeys common_keys(const ExternalKeys& external, const RowLimits& limits, int64_t rows) {
  ExternalKeys common = external;
  common.length = external.length.clone();
  if (external.first.defined()) common.first = external.first.clone();
  auto* length = common.length.mutable_data_ptr<int64_t>();
  for (int64_t s = 0; s < common.length.numel(); ++s) {
    const int64_t dropped = std::min(limits.first_key(rows - 1, length[s]), length[s]);
    if (dropped == 0) continue;
    length[s] -= dropped;
    common.first[s] += dropped;
    const auto moved = [&](at::Tensor& keys, const at::Tensor& from) {
      if (keys.is_same(from)) keys = from.clone();
      keys.select(0, s)
          .narrow(1, 0, length[s])
          .copy_(from.select(0, s).narrow(1, dropped, length[s]));
    };
    moved(common.key, external.key);
    moved(common.value, external.value);
  }
  return common;
}

}  // namespace blockscope
