// The state of one sequence while a foreign file is read: the present frame, and the checks that
// every step must pass in any file format. Internal to the readers.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/json/json_node.h"

namespace blockscope {

/// Whether the object has this member and it is not null. Refuses a node that is not an object.
bool given(const JsonNode& node, const char* key);

/// A probability (a little above 1 is accepted, because sums are rounded) or a smaller measure;
/// null gives `missing`.
float read_confidence(const JsonNode& node, float missing);

/// A token of the vocabulary, or the mask.
std::int64_t read_token(const JsonNode& node, const ImportedTrajectory& facts);

/// The value that the flag or the file gives. If both give it, they must agree. If neither does,
/// throws UsageError that names the flag.
std::int64_t agreed(const std::optional<std::int64_t>& flag, const char* option,
                    const JsonNode& holder, const char* member, std::int64_t least,
                    std::int64_t most);

/// Refuses a trajectory with more steps times positions than any run has: a few bytes of a file
/// must not fill a disk with frames.
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

  /// Sets the tokens that are decided before the first step.
  void begin(const JsonNode& node, const FrameDelta& delta);
  /// Applies a step. Refuses a delta that does not fit the frame, tokens outside the vocabulary, a
  /// token at a position that already has one, and transfers in two blocks. A delta that states its
  /// transfer_step may put another token there (an edit). A transfer of the mask takes a token
  /// back: the position gets kUndecodedStep and kUntouchedConfidence.
  void add_step(const JsonNode& node, FrameDelta delta, std::vector<BestToken> best);

  ImportedSequence finish(SequenceEnd end);

 private:
  void check_transfers(const JsonNode& node, const SequenceDelta& row, bool may_edit) const;

  const ImportedTrajectory& facts_;
  std::int64_t prompt_length_;
  Frame frame_;
  ImportedSequence sequence_;
};

}  // namespace blockscope
