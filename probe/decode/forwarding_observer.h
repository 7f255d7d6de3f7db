// An observer that forwards every call to another one. A measurement overrides single calls, and
// the decoder still does all the work that the other observer asks for.
#pragma once

#include <vector>

#include "probe/decode/decode_observer.h"

namespace blockscope {

/// `next` must outlive this object. If it is null, nothing is asked for and nothing forwarded.
class ForwardingObserver : public DecodeObserver {
 public:
  explicit ForwardingObserver(DecodeObserver* next) : next_(next) {}

  bool looks_inside(const PassContext& context) const override {
    return next_ != nullptr && next_->looks_inside(context);
  }
  bool wants_logits() const override { return next_ != nullptr && next_->wants_logits(); }
  bool wants_weights(const PassContext& context, int64_t layer) const override {
    return next_ != nullptr && next_->wants_weights(context, layer);
  }
  std::vector<std::vector<int64_t>> key_ranges(const PassContext& context,
                                               int64_t layer) const override {
    return next_ != nullptr ? next_->key_ranges(context, layer)
                            : std::vector<std::vector<int64_t>>();
  }
  bool wants_every_prediction() const override {
    return next_ != nullptr && next_->wants_every_prediction();
  }
  void on_attention(const AttentionView& view) override {
    if (next_ != nullptr) next_->on_attention(view);
  }
  void on_hidden(const PassContext& context, int64_t layer, const at::Tensor& hidden) override {
    if (next_ != nullptr) next_->on_hidden(context, layer, hidden);
  }
  void on_router(const PassContext& context, int64_t layer, const RouterChoice& choice) override {
    if (next_ != nullptr) next_->on_router(context, layer, choice);
  }
  void on_staleness(const PassContext& context, const Staleness& of_layers) override {
    if (next_ != nullptr) next_->on_staleness(context, of_layers);
  }
  void on_committed_keys(const CommittedKeys& keys) override {
    if (next_ != nullptr) next_->on_committed_keys(keys);
  }
  void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                 const at::Tensor& logits) override {
    if (next_ != nullptr) next_->on_logits(context, slots, logits);
  }
  void on_masked_logits(const PassContext& context, const std::vector<int64_t>& slots,
                        const std::vector<std::vector<bool>>& predicted,
                        const at::Tensor& logits) override {
    if (next_ != nullptr) next_->on_masked_logits(context, slots, predicted, logits);
  }
  void on_pass(const PassResult& result) override {
    if (next_ != nullptr) next_->on_pass(result);
  }
  void on_remove(int64_t slot) override {
    if (next_ != nullptr) next_->on_remove(slot);
  }

 private:
  DecodeObserver* next_;
};

}  // namespace blockscope
