#include "probe/draft/draft_seams.h"

#include <ATen/ATen.h>

#include <utility>

#include "decode_record/base/nan.h"
#include "kernels/ops.h"
#include "kernels/torch/fallback_operators.h"
#include "probe/decode/block_rows.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

ExternalKeys external_of(const KvCache& cache, int64_t layer) {
  return {cache.key(layer), cache.value(layer), cache.lengths(layer), cache.first_positions(layer)};
}

/// The parts of a causal pass: the keys before it (external), and its own keys up to each row
/// (internal). It goes row by row, as split_attention has no mask. The caller fills `out`.
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

TargetSeams::TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers,
                         Watcher& watcher)
    : ObservedSeams(watcher), cache_(cache), taps_(std::move(layers), num_layers) {}

void TargetSeams::begin_pass(const PassContext* context, int64_t first_slot, int64_t length) {
  begin(context, looks_inside(context));
  first_slot_ = first_slot;
  length_ = length;
  taps_.begin_pass();
}

at::Tensor TargetSeams::attention(const AttentionInput& input) {
  const UnwatchedStopwatch watch(attention_ns_, watcher_);
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
  at::Tensor out = outputs.size() == 1 ? outputs.front() : at::cat(outputs);
  show_causal(input, out);
  return out;
}

/// Only the observer needs the parts.
void TargetSeams::show_causal(const AttentionInput& input, const at::Tensor& out) {
  show_call([&] {
    const ExternalKeys external = external_of(cache_, input.layer);
    AttentionInput seen{input.layer, input.q, input.k, input.v, input.scale};
    seen.keep_weights = wants_weights(input, external);
    AttentionParts parts = causal_parts(seen, external);
    parts.out = out;
    seen.spread = wanted_spread(input.layer);
    if (seen.spread != nullptr) {
      fallback::fill_spread(input.q, external.key, external.length, input.k, input.scale,
                            {.causal = true}, *seen.spread);
    }
    return ShownAttention(seen, external, std::move(parts));
  });
}

void TargetSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  taps_.before_layer(layer, hidden);
  ObservedSeams::before_layer(layer, hidden);
}

DraftSeams::DraftSeams(const KvCache& context, const ModelConfig& draft, Watcher& watcher)
    : ObservedSeams(watcher), cache_(context) {
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    limits_.push_back({draft.layer(layer).window, draft.draft->causal(layer)});
  }
}

void DraftSeams::begin_round(const PassContext* context, int64_t rows, int64_t round) {
  begin(context, looks_inside(context));
  round_ = round;
  row_index_ = rows < round ? at::arange(rows, at::kLong) : at::Tensor();
}

at::Tensor DraftSeams::attention(const AttentionInput& pass_input) {
  const UnwatchedStopwatch watch(attention_ns_, watcher_);
  AttentionInput input = pass_input;
  const ExternalKeys external = external_of(cache_, input.layer);
  input.keep_weights = !row_index_.defined() && wants_weights(input, external);
  input.spread = wanted_spread(input.layer, row_index_);
  const RowLimits& limits = limits_[static_cast<size_t>(input.layer)];
  const int64_t rows = input.q.size(2);
  const bool limited = limits.causal || limits.first_key(rows - 1, external.key.size(2)) > 0;
  input.keep_weights = input.keep_weights && !limited;
  const AttentionParts used =
      limited ? limited_attention(input, external, limits) : exact_attention(input, external);
  if (!shown()) return used.out;
  if (limited && input.spread != nullptr) {
    watcher_.show([&](DecodeObserver&) {
      fallback::fill_spread(input.q, external.key, external.length, input.k, input.scale,
                            {.causal = limits.causal, .window = limits.window}, *input.spread);
    });
  }
  const at::Tensor key = shown_keys(input.k);
  const at::Tensor value = shown_keys(input.v);
  AttentionInput seen{input.layer, input.q, key, value, input.scale};
  seen.spread = input.spread;
  show_attention(seen, limited ? common_keys(external, limits, rows) : external, used, row_index_,
                 round_);
  return used.out;
}

at::Tensor DraftSeams::shown_rows(const at::Tensor& hidden) const {
  return row_index_.defined() ? among_block(hidden, 1, row_index_, round_, kNaN) : hidden;
}

at::Tensor DraftSeams::shown_keys(const at::Tensor& rows) const {
  return row_index_.defined() ? among_block(rows, 2, row_index_, round_, kNaN) : rows;
}

}  // namespace blockscope
