#include "probe/draft/draft_seams.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/ops.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

ExternalKeys external_of(const KvCache& cache, int64_t layer) {
  return {cache.key(layer), cache.value(layer), cache.lengths()};
}

/// The parts of a causal pass: the keys before it (external), and of the pass's own keys those up
/// to each row (internal), row by row, as split_attention has no mask. `out` is the caller's to
/// fill.
AttentionParts causal_parts(const AttentionInput& input, const ExternalKeys& external) {
  const at::Tensor no_key = input.k.narrow(2, 0, 0);
  const at::Tensor no_value = input.v.narrow(2, 0, 0);
  AttentionParts parts = exact_attention(
      {input.layer, input.q, no_key, no_value, input.scale, input.keep_weights}, external);
  const at::Tensor none = at::zeros({input.q.size(0)}, at::kLong);
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> lses;
  for (int64_t row = 0; row < input.q.size(2); ++row) {
    const SplitAttention own =
        split_attention(input.q.narrow(2, row, 1), no_key, no_value, none,
                        input.k.narrow(2, 0, row + 1), input.v.narrow(2, 0, row + 1), input.scale);
    outputs.push_back(own.internal);
    lses.push_back(own.lse_internal);
  }
  parts.internal = at::cat(outputs, 2);
  parts.lse_internal = at::cat(lses, 2);
  return parts;
}

}  // namespace

void RoundSeams::begin(const PassContext* context) {
  const bool shown =
      observer_ != nullptr && context != nullptr && observer_->looks_inside(*context);
  context_ = shown ? context : nullptr;
  observer_ns_ = attention_ns_ = 0;
}

void RoundSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  if (!watched()) return;
  const Stopwatch watch(observer_ns_);
  observer_->on_hidden(*context_, layer, hidden);
}

bool RoundSeams::keeps_weights(const AttentionInput& input, const ExternalKeys& external) const {
  const int64_t weights =
      input.q.size(0) * input.q.size(1) * input.q.size(2) * external.key.size(2);
  return watched() && weights * static_cast<int64_t>(sizeof(float)) <= kMostKeptWeightBytes &&
         observer_->wants_weights(*context_, input.layer);
}

void RoundSeams::show(const AttentionInput& input, const ExternalKeys& external,
                      const AttentionParts& used) {
  observer_->on_attention({*context_, input, external, used, &used});
}

TargetSeams::TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers,
                         DecodeObserver* observer)
    : RoundSeams(observer), cache_(cache), taps_(std::move(layers), num_layers) {}

void TargetSeams::begin_rows(int64_t first_slot, int64_t length) {
  first_slot_ = first_slot;
  length_ = length;
  taps_.begin_pass();
}

void TargetSeams::begin_prefill(int64_t slot, int64_t length) {
  begin(nullptr);
  begin_rows(slot, length);
}

void TargetSeams::begin_round(const PassContext* context, int64_t length) {
  begin(context);
  begin_rows(0, length);
}

at::Tensor TargetSeams::attention(const AttentionInput& input) {
  at::Tensor out;
  {
    const Stopwatch watch(attention_ns_);
    cache_.store(input.layer, first_slot_, input.k, input.v);
    std::vector<at::Tensor> outputs;
    for (int64_t entry = 0; entry < input.q.size(0); ++entry) {
      const int64_t slot = first_slot_ + entry;
      const int64_t committed = cache_.length(slot);
      outputs.push_back(prefill_attention(input.q.narrow(0, entry, 1),
                                          cache_.stored_key(input.layer, slot, length_),
                                          cache_.stored_value(input.layer, slot, length_),
                                          at::full({1}, committed + length_, at::kLong),
                                          /*block_length=*/1, input.scale, committed));
    }
    out = outputs.size() == 1 ? outputs.front() : at::cat(outputs);
  }
  if (watched()) {
    const Stopwatch watch(observer_ns_);
    const ExternalKeys external = external_of(cache_, input.layer);
    const AttentionInput shown{input.layer, input.q,     input.k,
                               input.v,     input.scale, keeps_weights(input, external)};
    AttentionParts parts = causal_parts(shown, external);
    parts.out = out;
    show(shown, external, parts);
  }
  return out;
}

void TargetSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  taps_.before_layer(layer, hidden);
  RoundSeams::before_layer(layer, hidden);
}

DraftSeams::DraftSeams(const KvCache& context, DecodeObserver* observer)
    : RoundSeams(observer), cache_(context) {}

void DraftSeams::begin_round(const PassContext& context) { begin(&context); }

at::Tensor DraftSeams::attention(const AttentionInput& pass_input) {
  AttentionInput input = pass_input;
  const ExternalKeys external = external_of(cache_, input.layer);
  input.keep_weights = keeps_weights(input, external);
  AttentionParts used;
  {
    const Stopwatch watch(attention_ns_);
    used = exact_attention(input, external);
  }
  if (watched()) {
    const Stopwatch watch(observer_ns_);
    show(input, external, used);
  }
  return used.out;
}

}  // namespace blockscope
