// Which rows of a bidirectional model's canvas (prompt and all blocks) a pass computes, and what it
// takes from earlier passes. Each method is one small class. The decoding loop and the attention
// know only this interface.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "probe/caches/cache_options.h"
#include "probe/caches/canvas_keys.h"
#include "probe/caches/layer_work.h"
#include "probe/model/attention_layer.h"

namespace blockscope {

/// The state of a sequence before a pass. Positions are absolute, from 0.
struct CanvasState {
  int64_t prompt_length = 0;
  int64_t length = 0;       // L
  int64_t block_start = 0;  // first position of the current block
  int64_t block_length = 0;
  int64_t step = 0;                              // step in the block, from 1
  int64_t run_step = 0;                          // step in the sequence, from 1
  int64_t logit_shift = 0;                       // 1: row p predicts position p + 1
  const std::vector<int64_t>* tokens = nullptr;  // [L]
  std::vector<bool> masked;                      // [L]

  int64_t block_end() const { return block_start + block_length; }
};

/// What a step predicted and decided.
struct CanvasFeedback {
  std::vector<int64_t> selected;  // absolute positions that were chosen, also if the chosen token
                                  // was [MASK] itself
  std::vector<float> confidence;  // [G] values by which the masks of the block and after it are
                                  // ranked; NaN elsewhere and where the pass predicts nothing
};

/// Attention of rows over the whole canvas, as the pass computes it: q [1, H, R, D] of `rows` -> z
/// [1, H, R, D]. If a device chose some rows, all other rows are prompt rows.
using RowAttention = std::function<at::Tensor(const at::Tensor& q, const CanvasRows& rows)>;

class CanvasCache {
 public:
  virtual ~CanvasCache() = default;

  /// The rows that the pass carries through the layers, absolute positions, ascending.
  virtual std::vector<int64_t> rows(const CanvasState& state) = 0;

  /// A key for passes that can share one device graph (pass_graphs.h), asked after rows(). Passes
  /// over the same rows with equal keys run the same operators over the same tensors, and leave the
  /// cache as it was, except for those tensors' values. None: not repeatable.
  virtual std::optional<std::vector<int64_t>> repeats() const { return std::nullopt; }

  /// Fast-dLLM's cached Dream: the block's first pass decides its first position and nothing else.
  virtual bool decides_first_position_only(const CanvasState& /*state*/) const { return false; }

  /// The attention part of a layer: x [1, R, hidden_size] of the pass's rows -> same shape.
  /// `needed` (int64, places in x): only these rows are read and returned, at the last layer; null:
  /// all rows. The default takes nothing from earlier passes. `work` says what was computed; it
  /// also counts the rows that nobody needed.
  virtual at::Tensor attention_block(int64_t layer, const AttentionLayer& weights,
                                     const at::Tensor& x, const RotaryRows& rotary,
                                     CanvasKeys& keys, const RowAttention& attend,
                                     const at::Tensor* needed, LayerWork& work);

  /// The feed-forward part of a layer, for the same rows.
  virtual at::Tensor ffn(int64_t layer, const at::Tensor& x,
                         const std::function<at::Tensor(const at::Tensor&)>& mlp);

  /// Whether the cache reuses rows' outputs of earlier passes. Then the last layer, too, must
  /// compute the outputs of all rows of a pass.
  virtual bool keeps_outputs() const { return false; }

  /// Whether end_step also needs the confidence of masks after the block.
  virtual bool wants_answer_confidence() const { return false; }

  /// Called after the last layer. A cache can start copying to the host what end_step needs: the
  /// host waits for the step's tokens first, so the copy costs no time.
  virtual void end_pass() {}

  /// Called after the step's decision; `tokens` of the state already contain it.
  virtual void end_step(const CanvasState& /*state*/, const CanvasFeedback& /*feedback*/) {}

 protected:
  /// The positions of the rows `needed`; null: all positions of the pass.
  std::vector<int64_t> positions_of(const at::Tensor* needed) const;

  std::vector<int64_t> rows_;  // of the current pass, as rows() returned them
};

}  // namespace blockscope
