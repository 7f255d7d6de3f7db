// ForwardSeams of a bidirectional model. The cache says which rows are computed. The block's rows
// go through the attention policy (external keys: everything outside the block); the other rows go
// through plain attention over all keys.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "probe/caches/canvas_cache.h"
#include "probe/caches/canvas_keys.h"
#include "probe/decode/observed_seams.h"

namespace blockscope {

class CanvasSeams : public ObservedSeams {
 public:
  /// `shadow`: also compute the exact values.
  CanvasSeams(AttentionPolicy& policy, CanvasCache& cache, CanvasKeys& keys, Watcher& watcher,
              bool shadow);

  /// Begins a pass of one sequence with the rows that the cache named. The last `shadow_rows` of
  /// the input belong to a shadow block (shadow_block.h). `needed`: see needed_rows; it must
  /// include the block's own rows, and be unset with a shadow block.
  void begin_pass(const PassContext& context, const std::vector<int64_t>& rows, int64_t shadow_rows,
                  std::optional<at::Tensor> needed);
  void end_pass();

  std::optional<at::Tensor> needed_rows() const override { return needed_; }
  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary) override;
  at::Tensor attention(const AttentionInput& input) override;
  at::Tensor patched_hidden(int64_t layer, const at::Tensor& hidden) override;
  at::Tensor ffn(int64_t layer, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor&)>& mlp) override;

  /// The number of positions whose attention and FFN the current pass computed, as a mean over its
  /// layers so far, plus the shadow rows.
  double computed_rows() const;
  /// What the current pass computed, by model layer.
  const std::vector<LayerWork>& work() const { return trail_->work; }
  /// With `shadow`: the attention output of the block's rows that a layer computed.
  struct BlockOutput {
    std::vector<int64_t> positions;  // absolute
    at::Tensor out;                  // [1, H, R, D]; undefined if there are none
    at::Tensor present;  // [R] bool: the computed ones, if a device chose; undefined: all
  };
  const BlockOutput& block_output(int64_t layer) const {
    return trail_->outputs[static_cast<size_t>(layer)];
  }

  void captured() override { captured_ = trail_; }
  void launched() override { trail_ = captured_; }

 private:
  /// What the layers of a pass left to the host, by layer.
  struct Trail {
    std::vector<LayerWork> work;
    std::vector<BlockOutput> outputs;
  };

  at::Tensor shown_rows(const at::Tensor& hidden) const override;
  at::Tensor attend_rows(int64_t layer, double scale, const at::Tensor& q, const CanvasRows& rows);
  at::Tensor attend_known(int64_t layer, double scale, const at::Tensor& q,
                          const std::vector<int64_t>& positions);
  at::Tensor attend_chosen(int64_t layer, double scale, const at::Tensor& q,
                           const CanvasRows& rows);
  /// `present`: see BlockOutput.
  at::Tensor attend_block(int64_t layer, double scale, const at::Tensor& q,
                          const std::vector<int64_t>& positions, const at::Tensor& present = {});
  /// The places of positions in the block, [R] int64.
  at::Tensor places(const std::vector<int64_t>& positions) const;
  void show_present(const AttentionInput& input, const ExternalKeys& external,
                    const AttentionParts& used, const at::Tensor& present);
  at::Tensor attend_others(int64_t layer, double scale, const at::Tensor& q) const;
  void show_keys(DecodeObserver& observer) const;

  AttentionPolicy& policy_;
  CanvasCache& cache_;
  CanvasKeys& keys_;
  std::vector<int64_t> rows_;
  int64_t shadow_rows_ = 0;
  std::optional<at::Tensor> needed_;
  std::shared_ptr<Trail> trail_ = std::make_shared<Trail>();  // of the current pass
  std::shared_ptr<Trail> captured_;
};

}  // namespace blockscope
