// ForwardSeams of a draft and of its target.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/kv_cache.h"
#include "probe/decode/observed_seams.h"
#include "probe/draft/hidden_taps.h"

namespace blockscope {

/// A target's pass over positions behind its cache, each of which sees itself and what stands
/// before it. Their keys are stored, and stay invisible until somebody commits those of accepted
/// tokens. Whoever watches sees the committed keys as external ones and the pass's own, of which a
/// row sees those up to itself, as internal ones.
class TargetSeams : public ObservedSeams {
 public:
  /// `layers`: whose outputs are kept, of `num_layers`.
  TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers, Watcher& watcher);

  /// Over `length` positions of the active slots from `first_slot` on. `context`: null: shown to
  /// nobody.
  void begin_pass(const PassContext* context, int64_t first_slot, int64_t length);
  at::Tensor attention(const AttentionInput& input) override;
  void before_layer(int64_t layer, const at::Tensor& hidden) override;
  const HiddenTaps& taps() const { return taps_; }

 private:
  void show_causal(const AttentionInput& input, const at::Tensor& out);

  KvCache& cache_;
  HiddenTaps taps_;
  int64_t first_slot_ = 0;
  int64_t length_ = 0;
};

/// A draft's pass over its block: every position sees the context's keys (external) and the whole
/// block (internal).
class DraftSeams : public ObservedSeams {
 public:
  DraftSeams(const KvCache& context, Watcher& watcher);

  /// `context`: null: shown to nobody.
  void begin_round(const PassContext* context);
  at::Tensor attention(const AttentionInput& input) override;

 private:
  const KvCache& cache_;
};

}  // namespace blockscope
