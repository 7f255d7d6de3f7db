// What the seams of blocks, canvases, drafts and their targets have in common: a pass over blocks
// whose layers the observer may be shown, and the time of its attention.
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

  /// The pass to come. `shown`: whether the observer sees inside its layers; it needs the context
  /// then.
  void begin(const PassContext* context, bool shown);
  /// Whether the observer looks inside the layers of this pass; null: no.
  bool looks_inside(const PassContext* context) const;
  bool shown() const { return shown_; }
  bool watched() const { return watcher_.observer() != nullptr; }

  /// Whether the exact weights of `external` are worth keeping for the observer.
  bool wants_weights(const AttentionInput& input, const ExternalKeys& external) const;
  /// Shows what a layer used, and with a shadow the exact values. `rows` [R] int64 on the host: the
  /// positions of its block of `block_length` that an exact pass computed; undefined: all.
  void show_attention(const AttentionInput& input, const ExternalKeys& external,
                      const AttentionParts& used, const at::Tensor& rows = {},
                      int64_t block_length = 0);
  /// What of the residual stream that enters a layer the observer is shown, [S, B, hidden_size];
  /// undefined: nothing.
  virtual at::Tensor shown_rows(const at::Tensor& hidden) const { return hidden; }

  Watcher& watcher_;
  const bool shadow_;
  const PassContext* context_ = nullptr;
  int64_t attention_ns_ = 0;

 private:
  bool shown_ = false;
};

}  // namespace blockscope
