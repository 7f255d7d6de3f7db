// One sequence of a foreign file while it is read: the frame as it stands, and the checks that
// every step must pass, whatever form it is written in. Internal to the readers.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/json/json_node.h"

namespace blockscope {

/// Whether the member is there and not null; refuses what is no object.
bool given(const JsonNode& node, const char* key);

/// A probability, with room for the rounding of a sum, or a smaller measure; null: `missing`.
float read_confidence(const JsonNode& node, float missing);

/// A token of the vocabulary, or the mask.
std::int64_t read_token(const JsonNode& node, const ImportedTrajectory& facts);

/// What both say must be the same; what nobody says is a UsageError that names the flag.
std::int64_t agreed(const std::optional<std::int64_t>& flag, const char* option,
                    const JsonNode& holder, const char* member, std::int64_t least,
                    std::int64_t most);

/// Refuses a trajectory of more steps times positions than any run has: a few bytes of a file must
/// not become a disk full of frames.
void check_import_size(const JsonNode& node, std::size_t steps, std::size_t positions);

/// Refuses a block longer than the longest sequence.
void check_block_length(const JsonNode& node, std::int64_t block_length, std::int64_t longest);

class ImportState {
 public:
  /// `facts` must outlive it. The frame starts as `gen_length` masks.
  ImportState(const ImportedTrajectory& facts, SequenceStart start);

  const Frame& frame() const { return frame_; }
  std::int64_t prompt_length() const { return prompt_length_; }
  std::int64_t block_of(std::int64_t position) const;
  /// First and one past the last position of a block that exist in the frame.
  std::pair<std::int64_t, std::int64_t> range_of(std::int64_t block) const;

  /// What stands there before the first step.
  void begin(const JsonNode& node, const FrameDelta& delta);
  /// A step. Refuses a delta that does not fit the frame, tokens outside the vocabulary, a token on
  /// a position that holds one, and transfers in two blocks. A mask on a token takes it back: it
  /// gets kUndecodedStep and kUntouchedConfidence.
  void add_step(const JsonNode& node, FrameDelta delta, std::vector<BestToken> best);

  ImportedSequence finish(SequenceEnd end);

 private:
  void check_transfers(const JsonNode& node, const SequenceDelta& row) const;

  const ImportedTrajectory& facts_;
  std::int64_t prompt_length_;
  Frame frame_;
  ImportedSequence sequence_;
};

}  // namespace blockscope
