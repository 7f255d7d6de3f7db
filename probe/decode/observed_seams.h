// What the seams of blocks, canvases, drafts and targets share: they show the layers of a pass to
// the observer, and measure the time of its attention.
#pragma once

#include <cstdint>

#include "probe/decode/watcher.h"
#include "probe/model/forward_seams.h"
#include "probe/policies/attention_policy.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

class ObservedSeams : public ForwardSeams {
 public:
  void before_layer(int64_t layer, const at::Tensor& hidden) override;

  /// Nanoseconds of the current pass spent in attention, without the observer.
  int64_t attention_ns() const { return attention_ns_; }

 protected:
  /// `shadow`: also compute the exact values.
  explicit ObservedSeams(Watcher& watcher, bool shadow = false)
      : watcher_(watcher), shadow_(shadow) {}

  /// Begins a pass. `shown`: whether the observer sees inside its layers; then `context` must be
  /// given.
  void begin(const PassContext* context, bool shown);
  /// Whether the observer looks inside the layers of this pass. False if `context` is null.
  bool looks_inside(const PassContext* context) const;
  bool shown() const { return shown_; }
  bool watched() const { return watcher_.observer() != nullptr; }

  /// Whether the exact weights of `external` are worth keeping for the observer.
  bool wants_weights(const AttentionInput& input, const ExternalKeys& external) const;
  /// The question that the observer has about the weights of a layer, for all T queries or those
  /// of `rows` (see show_attention); nullptr: none. It is valid until the next call.
  WeightSpread* wanted_spread(int64_t layer, const at::Tensor& rows = {});
  /// Shows the values that a layer used, and with `shadow` the exact ones. `rows` [R] int64, on the
  /// host: the positions that an exact pass computed, in a block of `block_length`; undefined: all.
  void show_attention(const AttentionInput& input, const ExternalKeys& external,
                      const AttentionParts& used, const at::Tensor& rows = {},
                      int64_t block_length = 0);
  /// The part of a layer's incoming residual stream that the observer sees, [S, B, hidden_size];
  /// undefined: nothing.
  virtual at::Tensor shown_rows(const at::Tensor& hidden) const { return hidden; }

  Watcher& watcher_;
  const bool shadow_;
  const PassContext* context_ = nullptr;
  int64_t attention_ns_ = 0;

 private:
  bool shown_ = false;
  WeightSpread spread_;
};

}  // namespace blockscope
