#include "probe/decode/observed_seams.h"

#include <ATen/ATen.h>

#include <optional>

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
  if (!shown_) return;
  watcher_.show([&](DecodeObserver& observer) {
    const at::Tensor rows = shown_rows(hidden);
    if (rows.defined()) observer.on_hidden(*context_, layer, rows);
  });
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
  if (!shown_) return;
  watcher_.show([&](DecodeObserver& observer) {
    if (rows.defined() && rows.numel() < block_length) {
      const AttentionParts parts = among_block(used, rows, block_length);
      const at::Tensor q = among_block(input.q, 2, rows, block_length, kNaN);
      observer.on_attention({*context_,
                             {input.layer, q, input.k, input.v, input.scale},
                             external,
                             parts,
                             used.approximate() ? nullptr : &parts,
                             &rows,
                             nullptr,
                             input.spread});
      return;
    }
    std::optional<AttentionParts> shadow;
    const AttentionParts* exact = used.approximate() ? nullptr : &used;
    if (shadow_ && exact == nullptr) {
      shadow = make_exact_policy()->attend(input, external);
      exact = &*shadow;
    }
    observer.on_attention(
        {*context_, input, external, used, exact, nullptr, nullptr, input.spread});
  });
}

}  // namespace blockscope
