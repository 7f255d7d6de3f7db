#include "probe/decode/observed_seams.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "decode_record/base/nan.h"
#include "probe/decode/block_rows.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {

void ObservedSeams::begin(const PassContext* context, bool shown) {
  context_ = context;
  shown_ = shown;
  attention_ns_ = 0;
}

bool ObservedSeams::looks_inside(const PassContext* context) const {
  return watched() && context != nullptr && watcher_.observer()->looks_inside(*context);
}

void ObservedSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  show_call([&]() -> std::optional<ShownCall> {
    const at::Tensor rows = shown_rows(hidden);
    if (!rows.defined()) return std::nullopt;
    return ShownHidden{layer, rows};
  });
}

void ObservedSeams::take(ShownCall call, DecodeObserver& observer) {
  if (kept_calls_ == nullptr) return show(call, *context_, observer);
  close_gaps(call);
  kept_calls_->push_back(std::move(call));
}

void ObservedSeams::show_kept(const std::vector<ShownCall>& calls) {
  if (calls.empty()) return;
  watcher_.show([&](DecodeObserver& observer) {
    for (const ShownCall& call : copied(calls)) show(call, *context_, observer);
  });
}

int64_t ObservedSeams::shown_positions() const {
  int64_t count = 0;
  for (const SequencePass& pass : context_->sequences) count += std::ssize(pass.masked);
  return count;
}

std::vector<int64_t> ObservedSeams::questions(int64_t num_layers) const {
  if (!shown_) return {};
  std::vector<int64_t> asked;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    asked.push_back(watcher_.observer()->wants_weights(*context_, layer) ? 1 : 0);
    for (const std::vector<int64_t>& ends : watcher_.observer()->key_ranges(*context_, layer)) {
      asked.push_back(std::ssize(ends));
      asked.insert(asked.end(), ends.begin(), ends.end());
    }
  }
  return asked;
}

bool ObservedSeams::wants_weights(const AttentionInput& input, const ExternalKeys& external) const {
  const int64_t weights =
      input.q.size(0) * input.q.size(1) * input.q.size(2) * external.key.size(2);
  return shown_ && weights * static_cast<int64_t>(sizeof(float)) <= kMostKeptWeightBytes &&
         watcher_.observer()->wants_weights(*context_, input.layer);
}

WeightSpread* ObservedSeams::wanted_spread(int64_t layer, const at::Tensor& rows) {
  if (!shown_) return nullptr;
  spread_ = {};
  spread_.ends = watcher_.observer()->key_ranges(*context_, layer);
  if (spread_.ends.empty()) return nullptr;
  if (rows.defined()) {
    const at::Tensor places = rows.contiguous();
    const auto* first = places.const_data_ptr<int64_t>();
    spread_.places.assign(first, first + places.numel());
  }
  return &spread_;
}

void ObservedSeams::show_attention(const AttentionInput& input, const ExternalKeys& external,
                                   const AttentionParts& used, const at::Tensor& rows,
                                   int64_t block_length) {
  show_call([&]() -> ShownCall {
    if (rows.defined() && rows.numel() < block_length) {
      const at::Tensor q = among_block(input.q, 2, rows, block_length, kNaN);
      ShownAttention shown({input.layer, q, input.k, input.v, input.scale, false, input.spread},
                           external, among_block(used, rows, block_length));
      shown.rows = rows;
      return shown;
    }
    std::optional<AttentionParts> exact;  // fills the spread anew
    if (shadow_ && used.approximate()) exact = make_exact_policy()->attend(input, external);
    ShownAttention shown(input, external, used);
    shown.shadow = std::move(exact);
    return shown;
  });
}

}  // namespace blockscope
