// What the seams of blocks, canvases, drafts and targets share: they show the layers of a pass to
// the observer, and measure the time of its attention.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "probe/decode/shown_pass.h"
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

  /// Whether the observer looks inside the layers of the current pass.
  bool shown() const { return shown_; }
  /// The positions of the current pass that the observer sees: those of all its blocks.
  int64_t shown_positions() const;
  /// What the observer asks of this pass inside the layers; empty if it is not shown. A graph
  /// answers the same questions at every launch.
  std::vector<int64_t> questions(int64_t num_layers) const;
  /// While one lives, the layers of a pass keep in `calls` what they would show: their tensors have
  /// no values yet.
  class Keeping {
   public:
    Keeping(ObservedSeams& seams, std::vector<ShownCall>& calls) : seams_(seams) {
      seams_.kept_calls_ = &calls;
    }
    ~Keeping() { seams_.kept_calls_ = nullptr; }
    Keeping(const Keeping&) = delete;
    Keeping& operator=(const Keeping&) = delete;

   private:
    ObservedSeams& seams_;
  };
  /// Called after a pass was captured, and after each later launch of it, which calls no layer:
  /// what the layers left on the host is then that of the captured pass.
  virtual void captured() {}
  virtual void launched() {}
  /// Makes kept calls for the current pass, with copies of their tensors.
  void show_kept(const std::vector<ShownCall>& calls);

 protected:
  /// `shadow`: also compute the exact values.
  explicit ObservedSeams(Watcher& watcher, bool shadow = false)
      : watcher_(watcher), shadow_(shadow) {}

  /// Begins a pass. `shown`: whether the observer sees inside its layers; then `context` must be
  /// given.
  void begin(const PassContext* context, bool shown);
  /// Whether the observer looks inside the layers of this pass. False if `context` is null.
  bool looks_inside(const PassContext* context) const;
  bool watched() const { return watcher_.observer() != nullptr; }

  /// Shows the call that `make` prepares, if there is one and the observer looks inside this pass.
  template <class Make>
  void show_call(const Make& make) {
    if (!shown_) return;
    watcher_.show([&](DecodeObserver& observer) {
      if (std::optional<ShownCall> call = make()) take(std::move(*call), observer);
    });
  }

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
  void take(ShownCall call, DecodeObserver& observer);

  bool shown_ = false;
  std::vector<ShownCall>* kept_calls_ = nullptr;
  WeightSpread spread_;
};

}  // namespace blockscope
