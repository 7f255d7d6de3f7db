// Strategies that also edit decided tokens of the block: what such a rule gets, what it returns and
// what it remembers. The rules are in joint_threshold.cpp and joint_threshold_indel.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "probe/strategies/unmasking.h"

namespace blockscope {

/// Token ids with a meaning for edits; -1: the model has none.
struct EditTokens {
  int64_t mask = -1;
  int64_t remove = -1;  // DELETE: the position goes
  int64_t split = -1;   // SPLIT: a mask is inserted before the token
};

/// What an editing strategy remembers of the block that it decodes.
struct EditMemory {
  int64_t mask_steps = 0;  // steps that began with a mask
  int64_t post_steps = 0;  // joint_threshold: steps that began without one; joint_threshold_indel:
                           // steps in a row that began without a mask of the block's beginning
  bool ended = false;      // the block takes no further step
  // joint_threshold_indel alone:
  int64_t steps = 0;
  int64_t first_masks = 0;     // masks at the block's beginning
  std::vector<bool> original;  // [B] positions that began as masks; they move with edits
  std::set<std::vector<int64_t>>
      seen;  // blocks as earlier steps wrote them, before DELETE and SPLIT
};

/// One sequence's block while an editing strategy decides a step. All vectors are [B].
struct EditStep {
  const UnmaskingOptions& options;
  BlockPrediction& prediction;         // a rule may replace a position's token by its next best one
  const std::vector<int64_t>& tokens;  // the block before the step
  const std::vector<bool>& masked;
  const std::vector<bool>& generated;  // false: a token of the prompt, which is never edited
  EditTokens ids;
  EditMemory& memory;
  /// Gives a position its most probable token apart from these, and the confidence of that token.
  std::function<void(size_t position, const std::vector<int64_t>& without)> take_best_without;

  bool differs(size_t p) const { return prediction.token[p] != tokens[p]; }
};

/// What a step changes. All lists are ascending.
struct EditChoice {
  std::vector<int64_t> selected;  // masks that take their token
  std::vector<int64_t> edited;    // tokens that the predicted one replaces
  std::vector<int64_t> inserted;  // positions, 0 to B, before which a mask is inserted afterwards
  std::vector<int64_t> deleted;   // positions that then go, counted after the insertions; as many
};

/// Writes the masks `inserted` into a block and removes the positions `deleted`, like a FrameDelta.
void move_tokens(std::vector<int64_t>& block, const std::vector<int64_t>& inserted,
                 const std::vector<int64_t>& deleted, int64_t mask_token_id);

/// The positions to edit: decided by the model, with a prediction that differs from their token and
/// has a confidence > threshold.
std::vector<int64_t> confident_edits(const EditStep& step, double threshold);

}  // namespace blockscope
