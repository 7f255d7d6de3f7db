// Sub-blocks and the token shift of Fast-dLLM v2
// (`modeling.py:Fast_dLLM_QwenForCausalLM.generate`), as pure functions. The logits of position p
// predict position p + 1. A block is filled sub-block by sub-block, left to right; its first token
// is known from the pass that stored what stands before it. With the block cache, a denoising pass
// computes only the sub-block that it fills, and the keys of the other rows are those of the last
// pass that computed them.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// Rows [first, first + count) of a block.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// `masked` [B], but only of the first sub-block that holds a mask: tokens are chosen there.
std::vector<bool> open_positions(const std::vector<bool>& masked, int64_t sub_block_length);

/// The rows that a denoising pass computes: all of them; where the block's keys are `cached` and
/// the first token of the sub-block that is filled is known, only that sub-block.
RowRange rows_to_compute(const std::vector<bool>& masked, int64_t sub_block_length, bool cached);

/// For each of the computed rows' positions the row, counted in the pass, whose logits predict it:
/// the one before. The first has none in the pass, and gets its own (predicted_positions).
std::vector<int64_t> predicting_rows(const RowRange& computed);

/// [B]: the positions of the computed rows but the first. The first only where it is a mask (the
/// model predicted [MASK] as a block's first token): it takes the prediction of its own row, as the
/// official code has it.
std::vector<bool> predicted_positions(const std::vector<bool>& masked, const RowRange& computed);

/// Whether a stop token stands behind `prompt_length` and no mask before the first of them.
bool stop_reached(const std::vector<int64_t>& tokens, int64_t prompt_length,
                  const std::vector<int64_t>& stop_ids, int64_t mask_token_id);

}  // namespace blockscope
