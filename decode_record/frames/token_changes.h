// What a step did to the tokens of an answer, position by position: decided, edited or taken back,
// and which positions it inserted and deleted. The deltas hold all of it; this reads it out of
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "decode_record/frames/frame_delta.h"

namespace blockscope {

enum class ChangeKind : std::uint8_t {
  decided,     ///< a mask took a token
  edited,      ///< another token replaced the one that stood there
  taken_back,  ///< a token became a mask again
  moved,       ///< an insertion or deletion brought another token, or a mask, to the position
};

struct TokenChange {
  std::int64_t position = 0;  ///< in the answer, after the step
  ChangeKind kind = ChangeKind::decided;
  std::int64_t before = -1;  ///< the token that the position held; moved: the one at that position
  std::int64_t after = -1;
  float confidence = 0.0F;  ///< of `after`; -inf for a mask, and where the delta has none
};

struct StepChanges {
  std::vector<TokenChange> changes;  ///< by position, of the positions that the step left
  std::int64_t decided = 0;
  std::int64_t edited = 0;
  std::int64_t taken_back = 0;
  std::int64_t inserted = 0;    ///< positions, without those that only fill the block up at its end
  std::int64_t deleted = 0;     ///< positions, without those that insertions push out of the block
  std::int64_t net_tokens = 0;  ///< tokens after the step minus tokens before it
};

/// The generated tokens of a frame as follow_delta() takes them.
std::vector<std::int64_t> tokens_to_follow(const Frame& frame, std::int64_t mask_token_id);

/// Undecided positions hold `mask_token_id` here, also those of a canvas whose traces have noise
/// there (mask_token_id -1). Applies a resolved delta of one sequence to `tokens`, the part
/// [origin, origin + size) of its answer, and says what changed. Changes outside are left out. A
/// transfer of the token that stands there changes nothing. `block_end`: the position of the answer
/// after the row's block. If the insertions in the part are not as many as the deletions, `tokens`
/// changes its length.
StepChanges follow_delta(std::vector<std::int64_t>& tokens, std::int64_t origin,
                         const SequenceDelta& delta, std::int64_t mask_token_id,
                         std::int64_t block_end);

}  // namespace blockscope
