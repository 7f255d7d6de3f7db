// A picture in HTML of how a sequence was decoded. A block has a row for every position and a
// column for every denoising step. A token appears at the step that decided it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "analysis/pass/block_index.h"
#include "decode_record/frames/token_changes.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// What a step put at a position.
struct TrajectoryEvent {
  std::int32_t step = 0;    ///< 0: known before step 1
  std::int64_t token = -1;  ///< -1: a mask
  float confidence = std::numeric_limits<float>::quiet_NaN();
  ChangeKind kind = ChangeKind::decided;
};

/// One position of a block.
struct TrajectoryPosition {
  std::int64_t position = 0;  ///< absolute: prompt and generated tokens together
  std::int64_t token = -1;    ///< -1: still a mask after the last step
  std::int32_t step = -1;     ///< the step that decided it; 0: known before step 1; -1: never
  float confidence = std::numeric_limits<float>::quiet_NaN();
  std::vector<TrajectoryEvent> events;  ///< by step; the last one with a token gave it

  /// One step at most put a token there, for good.
  bool plain() const {
    return events.empty() || (events.size() == 1 && events[0].kind == ChangeKind::decided);
  }
};

/// One block's trajectory.
struct TrajectoryBlock {
  std::int32_t block = 0;
  std::int32_t num_steps = 0;  ///< denoising steps in the trace
  std::vector<TrajectoryPosition> positions;
};

/// Trajectory of the positions in the block's first pass. Throws TraceError for steps that change
/// the number of positions, because the table has fixed ones.
TrajectoryBlock trajectory_of(const TraceReader& trace, const BlockSteps& block);

/// Readable text of a token: spaces as open boxes, line breaks and tabs as arrows, U+FFFD for bytes
/// that are not text. "#17" if the trace has no vocabulary.
std::string token_text(const TraceReader& trace, std::int64_t token);

struct TrajectoryLimits {
  std::size_t blocks = 4;          ///< drawn
  std::size_t positions = 64;      ///< per block
  std::int32_t steps = 64;         ///< per block
  std::size_t prompt_tokens = 60;  ///< shown from the end of the prompt
};

/// Names and values, plain text: name, prompt, generated text, expected answer, score.
std::vector<std::pair<std::string, std::string>> sequence_facts(const TraceReader& trace,
                                                                const SequenceInfo& sequence,
                                                                const TrajectoryLimits& limits);

/// Neighbouring positions that all end the text are one row. `blocks`: all blocks of the sequence,
/// in order. `shown`: the first block to draw. The text says
/// what is left out.
std::string trajectory_html(const TraceReader& trace, const std::vector<BlockSteps>& blocks,
                            std::size_t shown, const TrajectoryLimits& limits = {});

/// A table blocks x steps of a continuous model's trace, with the timesteps.
std::string steps_html(const TraceReader& trace, const std::vector<BlockSteps>& blocks);

/// Style rules of the table, including the ten colours of confidence.
std::string trajectory_css();

}  // namespace blockscope
