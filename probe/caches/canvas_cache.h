// Which rows of a bidirectional model's canvas (prompt and all blocks) a pass computes, and what it
// takes from earlier passes. One small class a method; the decoding loop and the attention know
// only this interface.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "probe/caches/cache_options.h"
#include "probe/caches/canvas_keys.h"
#include "probe/caches/layer_work.h"
#include "probe/model/attention_layer.h"

namespace blockscope {

/// Where a sequence stands before a pass. Positions are absolute, from 0.
struct CanvasState {
  int64_t prompt_length = 0;
  int64_t length = 0;       // L
  int64_t block_start = 0;  // of the current block
  int64_t block_length = 0;
  int64_t step = 0;                              // in the block, from 1
  int64_t run_step = 0;                          // of the sequence, from 1
  int64_t logit_shift = 0;                       // 1: row p predicts position p + 1
  const std::vector<int64_t>* tokens = nullptr;  // [L]
  std::vector<bool> masked;                      // [L]

  int64_t block_end() const { return block_start + block_length; }
};

/// What a step predicted and decided.
struct CanvasFeedback {
  std::vector<int64_t> selected;  // absolute positions that were chosen, also where the token was
                                  // [MASK] itself
  std::vector<float> confidence;  // [G] what masks of the block and after it are ranked by; NaN
                                  // for the others, and where the pass predicts none
};

/// Attention of rows over the whole canvas, as the pass computes it: q [1, H, R, D] of `rows` -> z
/// [1, H, R, D]. Where a device chose some, the others are of the prompt.
using RowAttention = std::function<at::Tensor(const at::Tensor& q, const CanvasRows& rows)>;

class CanvasCache {
 public:
  virtual ~CanvasCache() = default;

  /// The rows that the pass carries through the layers, absolute positions, ascending.
  virtual std::vector<int64_t> rows(const CanvasState& state) = 0;

  /// Fast-dLLM's cached Dream: the block's first pass decides its first position and nothing else.
  virtual bool decides_first_position_only(const CanvasState& /*state*/) const { return false; }

  /// The attention part of a layer: x [1, R, hidden_size] of the pass's rows -> same shape. At the
  /// last layer somebody reads the rows `needed` (int64, their places in x) alone, and they alone
  /// are returned; else it is null. The default computes all of them; `work` says what was done,
  /// where rows that nobody needed count as computed.
  virtual at::Tensor attention_block(int64_t layer, const AttentionLayer& weights,
                                     const at::Tensor& x, const RotaryRows& rotary,
                                     CanvasKeys& keys, const RowAttention& attend,
                                     const at::Tensor* needed, LayerWork& work);

  /// The feed-forward part, likewise.
  virtual at::Tensor ffn(int64_t layer, const at::Tensor& x,
                         const std::function<at::Tensor(const at::Tensor&)>& mlp);

  /// Whether it takes outputs of rows from earlier passes, so that every pass must make those of
  /// all its rows at the last layer too.
  virtual bool keeps_outputs() const { return false; }

  /// Whether end_step needs the confidence of masks behind the block too.
  virtual bool wants_answer_confidence() const { return false; }

  /// After the last layer: what end_step needs of a device can go on its way to the host, which
  /// waits for the step's tokens before it needs it.
  virtual void end_pass() {}

  /// After the step's decision; `tokens` of the state are those after it.
  virtual void end_step(const CanvasState& /*state*/, const CanvasFeedback& /*feedback*/) {}

 protected:
  /// The positions of `needed`, all those of the pass without it.
  std::vector<int64_t> positions_of(const at::Tensor* needed) const;

  std::vector<int64_t> rows_;  // of the current pass, as rows() returned them
};

}  // namespace blockscope
