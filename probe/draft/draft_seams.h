// ForwardSeams of a draft and of its target.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/kv_cache.h"
#include "probe/decode/observed_seams.h"
#include "probe/draft/hidden_taps.h"

namespace blockscope {

/// A target's pass over the positions after its cache. Each position sees itself and everything
/// before it. The pass stores the keys, which stay invisible until those of accepted tokens are
/// committed. For observers, the committed keys are external. The pass's own keys are internal; a
/// row sees those up to itself.
class TargetSeams : public ObservedSeams {
 public:
  /// `layers`: the layers whose outputs are kept.
  TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers, Watcher& watcher);

  /// Begins a pass over `length` positions of the active slots from `first_slot` on. `context`:
  /// null to hide the pass from observers.
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

  /// Begins a pass. `context`: null to hide it from observers.
  void begin_round(const PassContext* context);
  at::Tensor attention(const AttentionInput& input) override;

 private:
  const KvCache& cache_;
};

}  // namespace blockscope
