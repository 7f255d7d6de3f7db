// ForwardSeams of a draft and of its target.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/decode/kv_cache.h"
#include "probe/draft/hidden_taps.h"
#include "probe/model/forward_seams.h"

namespace blockscope {

/// What both show of a round's pass to whoever watches that model, and what it took.
class RoundSeams : public ForwardSeams {
 public:
  void before_layer(int64_t layer, const at::Tensor& hidden) override;
  int64_t observer_ns() const { return observer_ns_; }
  int64_t attention_ns() const { return attention_ns_; }

 protected:
  /// `observer`: null: nobody watches this model.
  explicit RoundSeams(DecodeObserver* observer) : observer_(observer) {}

  /// `context`: null: the pass is shown to nobody.
  void begin(const PassContext* context);
  bool watched() const { return context_ != nullptr; }
  /// Whether the exact weights of `external` are worth keeping for the observer.
  bool keeps_weights(const AttentionInput& input, const ExternalKeys& external) const;
  void show(const AttentionInput& input, const ExternalKeys& external, const AttentionParts& used);

  int64_t observer_ns_ = 0;
  int64_t attention_ns_ = 0;

 private:
  DecodeObserver* observer_;
  const PassContext* context_ = nullptr;
};

/// A target's pass over positions behind its cache, each of which sees itself and what stands
/// before it. Their keys are stored, and stay invisible until somebody commits those of accepted
/// tokens. Whoever watches sees the committed keys as external ones and the pass's own, of which a
/// row sees those up to itself, as internal ones.
class TargetSeams : public RoundSeams {
 public:
  /// `layers`: whose outputs are kept, of `num_layers`.
  TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers,
              DecodeObserver* observer);

  /// Over `length` positions of one slot.
  void begin_prefill(int64_t slot, int64_t length);
  /// Over `length` positions of every active slot; `context`: null: shown to nobody.
  void begin_round(const PassContext* context, int64_t length);
  at::Tensor attention(const AttentionInput& input) override;
  void before_layer(int64_t layer, const at::Tensor& hidden) override;
  const HiddenTaps& taps() const { return taps_; }

 private:
  void begin_rows(int64_t first_slot, int64_t length);

  KvCache& cache_;
  HiddenTaps taps_;
  int64_t first_slot_ = 0;
  int64_t length_ = 0;
};

/// A draft's pass over its block: every position sees the context's keys (external) and the whole
/// block (internal).
class DraftSeams : public RoundSeams {
 public:
  DraftSeams(const KvCache& context, DecodeObserver* observer);

  void begin_round(const PassContext& context);
  at::Tensor attention(const AttentionInput& input) override;

 private:
  const KvCache& cache_;
};

}  // namespace blockscope
