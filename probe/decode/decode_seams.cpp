#include "probe/decode/decode_seams.h"

#include <ATen/ATen.h>

#include <array>

#include "decode_record/base/nan.h"
#include "kernels/ops.h"
#include "probe/decode/block_rows.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {

at::Tensor windowed_attention(const at::Tensor& q, const at::Tensor& key, const at::Tensor& value,
                              int64_t window, double scale) {
  const int64_t keys = key.size(2);
  const at::Device device = key.device();
  const at::Tensor row = at::arange(keys - q.size(2), keys, device).unsqueeze(1);
  const at::Tensor column = at::arange(keys, device).unsqueeze(0);
  const at::Tensor sees = (column <= row).logical_and(column > row - window);
  return at::scaled_dot_product_attention(q, key, value, sees, 0.0, false, scale,
                                          /*enable_gqa=*/true);
}

DecodeSeams::DecodeSeams(const DecodeOptions& options, AttentionPolicy& policy, KvCache& cache,
                         Watcher& watcher)
    : ObservedSeams(watcher, options.shadow),
      options_(options),
      policy_(policy),
      cache_(cache),
      block_cache_(options.block_cache()) {}

void DecodeSeams::begin_prefill(const PassContext& context, int64_t slot, int64_t length,
                                bool reads_last) {
  begin(&context, /*shown=*/false);
  prefill_slot_ = slot;
  prefill_length_ = length;
  needed_ = at::arange(reads_last ? length - 1 : length, length, at::kLong);
}

void DecodeSeams::begin_blocks(const PassContext& context, const RowRange& rows) {
  begin(&context, looks_inside(&context));
  rows_ = rows;
  row_index_ = at::arange(rows.first, rows.first + rows.count, at::kLong);
  stored_.clear();
  for (const FusedCommit& commit : context.commits) {
    stored_.resize(context.sequences.size(), 0);
    stored_[static_cast<size_t>(commit.slot)] = options_.block_length();
  }
  prefill_slot_ = -1;
  needed_.reset();
  policy_.begin_pass(context);
}

void DecodeSeams::end_pass() {
  if (prefill_slot_ >= 0) {
    cache_.commit(prefill_slot_, prefill_length_);
    return;
  }
  {
    const Stopwatch watch(attention_ns_);  // waits for work that ran in parallel with the layers
    policy_.end_pass();
  }
  for (size_t slot = 0; slot < context_->sequences.size(); ++slot) {
    if (stores(context_->sequences[slot])) {
      cache_.commit(static_cast<int64_t>(slot), options_.block_length());
    }
  }
  for (const FusedCommit& commit : context_->commits) {
    cache_.commit(commit.slot, options_.block_length());
  }
}

bool DecodeSeams::stores(const SequencePass& sequence) const {
  return options_.autoregressive() || sequence.kind == PassKind::commit;
}

void DecodeSeams::store(const AttentionInput& input, int64_t row, int64_t slot,
                        const SequencePass& pass) {
  const at::Tensor k = input.k.narrow(0, row, 1);
  const at::Tensor v = input.v.narrow(0, row, 1);
  cache_.store(input.layer, slot, k, v);
  watcher_.show([&](DecodeObserver& observer) {
    observer.on_committed_keys(
        {pass.sequence, input.layer, cache_.length(slot), k.select(0, 0), v.select(0, 0)});
  });
}

at::Tensor DecodeSeams::attention_block(int64_t layer, const AttentionLayer& weights,
                                        const at::Tensor& x, const RotaryRows& rotary) {
  if (!needed_ || layer + 1 < cache_.num_layers()) {
    return ForwardSeams::attention_block(layer, weights, x, rotary);
  }
  // At a prefill's last layer, only keys, values and the needed rows are read.
  const at::Tensor rows = x.index_select(1, on_device(*needed_, x.device()));
  const at::Tensor q = weights.query(rows, rotary.rows(*needed_));
  const at::Tensor k = weights.key(x, rotary);
  const at::Tensor v = weights.value(x);
  return weights.output(attention({layer, q, k, v, weights.scale()}));
}

at::Tensor DecodeSeams::attention(const AttentionInput& input) {
  const UnwatchedStopwatch watch(attention_ns_, watcher_);
  return prefill_slot_ >= 0 ? prefill_attention_of(input) : block_attention(input);
}

at::Tensor DecodeSeams::prefill_attention_of(const AttentionInput& input) {
  store(input, 0, prefill_slot_, context_->sequences.front());
  if (input.q.size(2) == 0) return input.q;
  const at::Tensor key = cache_.stored_key(input.layer, prefill_slot_, prefill_length_);
  const at::Tensor value = cache_.stored_value(input.layer, prefill_slot_, prefill_length_);
  const int64_t keys = key.size(2);
  const int64_t window = cache_.window(input.layer);
  if (window > 0 && keys > window) {
    return windowed_attention(input.q, key, value, window, input.scale);
  }
  const int64_t block_length = options_.canvas ? 1 : options_.block_length();  // 1: causal
  return prefill_attention(input.q, key, value, at::full({1}, keys, at::kLong), block_length,
                           input.scale, keys - input.q.size(2));
}

/// The input with the keys of the whole block. A pass over the whole block keeps its keys; a pass
/// over a part of it replaces its own keys among them, in place.
AttentionInput DecodeSeams::with_block_keys(const AttentionInput& input) {
  const auto layer = static_cast<size_t>(input.layer);
  if (block_key_.size() <= layer) {
    block_key_.resize(layer + 1);
    block_value_.resize(layer + 1);
  }
  if (rows_.count == options_.block_length()) {
    block_key_[layer] = input.k;
    block_value_[layer] = input.v;
  } else {
    block_key_[layer].narrow(2, rows_.first, rows_.count).copy_(input.k);
    block_value_[layer].narrow(2, rows_.first, rows_.count).copy_(input.v);
  }
  return {input.layer, input.q, block_key_[layer], block_value_[layer], input.scale};
}

at::Tensor DecodeSeams::block_attention(const AttentionInput& input) {
  if (context_->commits.empty()) return denoising_attention(input);
  const auto of_entries = [](const AttentionInput& whole, int64_t first, int64_t count) {
    return std::array{whole.q.narrow(0, first, count), whole.k.narrow(0, first, count),
                      whole.v.narrow(0, first, count)};
  };
  const int64_t sequences = std::ssize(context_->sequences);
  const auto [commit_q, commit_k, commit_v] =
      of_entries(input, sequences, std::ssize(context_->commits));
  const at::Tensor committed =
      fused_commits({input.layer, commit_q, commit_k, commit_v, input.scale});
  const auto [q, k, v] = of_entries(input, 0, sequences);
  return at::cat({denoising_attention({input.layer, q, k, v, input.scale}), committed}, 0);
}

/// Stores the keys of the fused commits, and attends them as a commit pass does: exactly, over
/// the prefix before their block.
at::Tensor DecodeSeams::fused_commits(const AttentionInput& input) {
  const std::vector<FusedCommit>& commits = context_->commits;
  const ExternalKeys external{cache_.key(input.layer), cache_.value(input.layer),
                              cache_.lengths(input.layer)};
  std::vector<at::Tensor> parts;
  // Neighbouring slots share one call, as other slots would need a copy of their prefixes.
  for (size_t first = 0; first < commits.size();) {
    size_t end = first + 1;
    while (end < commits.size() && commits[end].slot == commits[end - 1].slot + 1) ++end;
    const auto count = static_cast<int64_t>(end - first);
    const auto slots = [&](const at::Tensor& all) {
      return all.narrow(0, commits[first].slot, count);
    };
    const auto entries = [&](const at::Tensor& all) {
      return all.narrow(0, static_cast<int64_t>(first), count);
    };
    const at::Tensor q = entries(input.q);
    const at::Tensor k = entries(input.k);
    const at::Tensor v = entries(input.v);
    parts.push_back(
        exact_attention({input.layer, q, k, v, input.scale},
                        {slots(external.key), slots(external.value), slots(external.length)})
            .out);
    first = end;
  }
  for (size_t entry = 0; entry < commits.size(); ++entry) {
    store(input, static_cast<int64_t>(entry), commits[entry].slot, commits[entry].pass);
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

at::Tensor DecodeSeams::denoising_attention(const AttentionInput& pass_input) {
  AttentionInput input = block_cache_ ? with_block_keys(pass_input) : pass_input;
  const ExternalKeys external{cache_.key(input.layer, stored_), cache_.value(input.layer, stored_),
                              cache_.lengths(input.layer, stored_),
                              cache_.first_positions(input.layer)};
  input.keep_weights = rows_.count == options_.block_length() && wants_weights(input, external);
  input.spread = wanted_spread(input.layer, row_index_);
  const AttentionParts used = policy_.attend(input, external);
  for (size_t slot = 0; slot < context_->sequences.size(); ++slot) {
    const SequencePass& pass = context_->sequences[slot];
    const auto row = static_cast<int64_t>(slot);
    if (stores(pass)) store(input, row, row, pass);
  }
  show_attention(input, external, used, row_index_, options_.block_length());
  return used.out;
}

/// The entries of the sequences themselves: [S + F, ...] -> [S, ...].
at::Tensor DecodeSeams::without_commits(const at::Tensor& rows) const {
  return context_->commits.empty() ? rows : rows.narrow(0, 0, std::ssize(context_->sequences));
}

at::Tensor DecodeSeams::patched_hidden(int64_t layer, const at::Tensor& hidden) {
  if (prefill_slot_ >= 0) return {};
  const int64_t sequences = std::ssize(context_->sequences);
  at::Tensor patched = policy_.patched_hidden(layer, without_commits(hidden), row_index_);
  if (!patched.defined() || patched.size(0) == hidden.size(0)) return patched;
  return at::cat({patched, hidden.narrow(0, sequences, hidden.size(0) - sequences)}, 0);
}

void DecodeSeams::routed(int64_t layer, const RouterChoice& choice) {
  show_call([&] {
    return ShownRouter{layer, {without_commits(choice.expert), without_commits(choice.weight)}};
  });
}

at::Tensor DecodeSeams::shown_rows(const at::Tensor& hidden) const {
  return among_block(without_commits(hidden), 1, row_index_, options_.block_length(), kNaN);
}

}  // namespace blockscope
