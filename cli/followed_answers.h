// The answers of a trace, followed row by row, for what each row did to their tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "decode_record/frames/token_changes.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// The answers of all sequences, step by step.
class FollowedAnswers {
 public:
  explicit FollowedAnswers(const TraceReader& reader)
      : reader_(reader), answers_(static_cast<std::size_t>(reader.info().num_sequences)) {}

  /// What row first + i does to its sequence's answer.
  StepChanges step(std::int64_t first, const StepColumns& steps, std::size_t i) {
    const TraceMeta& meta = reader_.info().meta;
    Answer& answer = answers_.at(static_cast<std::size_t>(steps.sequence[i]));
    if (answer.prompt_length < 0) {
      const SequenceInfo info = reader_.sequence(steps.sequence[i]);
      answer.prompt_length = std::ssize(info.prompt);
      answer.tokens.assign(static_cast<std::size_t>(info.gen_length), meta.undecided_token());
    }
    const std::int64_t row = first + static_cast<std::int64_t>(i);
    return follow_delta(answer.tokens, 0, reader_.delta(row).rows.front(), meta.undecided_token(),
                        steps.block_start[i] - answer.prompt_length + meta.block_length);
  }

 private:
  struct Answer {
    std::int64_t prompt_length = -1;  // -1: no row yet
    std::vector<std::int64_t> tokens;
  };
  const TraceReader& reader_;
  std::vector<Answer> answers_;
};

}  // namespace blockscope
