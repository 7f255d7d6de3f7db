// ForwardSeams of a draft and of its target.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/checkpoint/model_config.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/observed_seams.h"
#include "probe/draft/hidden_taps.h"
#include "probe/draft/limited_attention.h"

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
/// block (internal), if the layer has no window and is not causal.
class DraftSeams : public ObservedSeams {
 public:
  DraftSeams(const KvCache& context, const ModelConfig& draft, Watcher& watcher);

  /// Begins a pass over the first `rows` of the `round` positions of its block. `context`: null to
  /// hide it from observers.
  void begin_round(const PassContext* context, int64_t rows, int64_t round);
  at::Tensor attention(const AttentionInput& input) override;

 protected:
  at::Tensor shown_rows(const at::Tensor& hidden) const override;

 private:
  at::Tensor shown_keys(const at::Tensor& rows) const;

  const KvCache& cache_;
  std::vector<RowLimits> limits_;  // [layers]
  int64_t round_ = 0;
  at::Tensor row_index_;  // [rows] int64; undefined: the whole round
};

}  // namespace blockscope
