// Replays one trajectory with two policies at once, pass by pass. The exact run is at most one
// layer ahead, so comparing the two keeps no run in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/decode/decoder.h"

namespace blockscope {

/// Sees the second policy's run together with the exact run's values at the same pass and layer.
/// Entry s of every tensor belongs to context.sequences[s], in both runs.
class LockstepVisitor {
 public:
  virtual ~LockstepVisitor() = default;
  /// exact_out [S, H, B, D] float32: the exact run's attention output, A_in and A_out merged.
  /// view.exact is what exact attention gives for the queries of the second run.
  virtual void on_attention(const AttentionView& view, const at::Tensor& exact_out) = 0;
  /// logits and exact_logits [S', B, V]; entry i belongs to context.sequences[slots[i]].
  virtual void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                         const at::Tensor& logits, const at::Tensor& exact_logits) = 0;
  /// A commit pass whose layers are not shown: the encoder's over a canvas.
  virtual void on_unseen_commit(const PassContext& /*context*/) {}
};

/// Every request must be a replay. The exact run decodes in a thread of its own, with `exact_model`
/// (the same model, or one of its shape). Rethrows what either run throws. `interrupted` ends both
/// runs; then the result is true.
bool replay_in_lockstep(const BlockDiffusionModel& exact_model, const BlockDiffusionModel& model,
                        AttentionPolicy& policy, const DecodeOptions& options,
                        const std::vector<DecodeRequest>& requests, LockstepVisitor& visitor,
                        const std::function<bool()>& interrupted);

/// A_in, A_out and the residual, if any, merged (FlashBlock eq. 9) -> [S, H, T, D] float32,
/// whatever the dtype of `out`.
at::Tensor merged_output(const AttentionParts& parts);

}  // namespace blockscope
