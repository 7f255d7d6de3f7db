// Sub-blocks and the token shift of Fast-dLLM v2
// (`modeling.py:Fast_dLLM_QwenForCausalLM.generate`), as pure functions. The logits of position p
// predict position p + 1. A block is filled sub-block by sub-block, from left to right. The pass
// that stored the positions before a block also predicts its first token. With the block cache, a
// denoising pass computes only the sub-block that it fills. The keys of the other rows come from
// the last pass that computed them.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// Rows [first, first + count) of a block.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// The masks of the first sub-block that has any, [B]. Only they may take tokens.
std::vector<bool> open_positions(const std::vector<bool>& masked, int64_t sub_block_length);

/// The rows that a denoising pass computes. They are only the sub-block being filled if the block's
/// keys are `cached` and the sub-block's first token is known; else all rows.
RowRange rows_to_compute(const std::vector<bool>& masked, int64_t sub_block_length, bool cached);

/// For each position of the computed rows, the row (counted in the pass) whose logits predict it:
/// the row before. The first position has no such row and gets its own (predicted_positions).
std::vector<int64_t> predicting_rows(const RowRange& computed);

/// [B]: the positions that the pass predicts: those of the computed rows without the first. The
/// first is included only if it is a mask, because the model predicted [MASK] as the block's first
/// token. As in the official code, it then takes the prediction of its own row.
std::vector<bool> predicted_positions(const std::vector<bool>& masked, const RowRange& computed);

/// Whether there is a stop token after the prompt, and no mask between the prompt and the first
/// stop token.
bool stop_reached(const std::vector<int64_t>& tokens, int64_t prompt_length,
                  const std::vector<int64_t>& stop_ids, int64_t mask_token_id);

}  // namespace blockscope
