// How a sequence was decoded, as a picture made of HTML: per block a row for every position and a
// column for every denoising step; a token appears in the step that decided it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "analysis/pass/block_index.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// One position of a block.
struct TrajectoryPosition {
  std::int64_t position = 0;  ///< absolute: prompt and generated tokens together
  std::int64_t token = -1;    ///< -1: still a mask after the last step
  std::int32_t step = -1;     ///< that decided it; 0: known before step 1; -1: never
  float confidence = std::numeric_limits<float>::quiet_NaN();
};

/// One block's trajectory.
struct TrajectoryBlock {
  std::int32_t block = 0;
  std::int32_t num_steps = 0;  ///< denoising steps in the trace
  std::vector<TrajectoryPosition> positions;
};

/// Positions that exist in the block's first pass. Throws TraceError for a strategy that inserts or
/// deletes positions: a table with fixed positions can't show those.
TrajectoryBlock trajectory_of(const TraceReader& trace, const BlockSteps& block);

/// Token text for people: leading and inner spaces as open boxes, line breaks as arrows, "#17"
/// where the trace has no vocabulary, U+FFFD for bytes that are not text.
std::string token_text(const TraceReader& trace, std::int64_t token);

struct TrajectoryLimits {
  std::size_t blocks = 4;          ///< pictured
  std::size_t positions = 64;      ///< of a block
  std::int32_t steps = 64;         ///< of a block
  std::size_t prompt_tokens = 60;  ///< the end of the prompt
};

/// `blocks`: the sequence's, in order; `shown` is where the pictures start. Says what it leaves
/// out.
std::string trajectory_html(const TraceReader& trace, const std::vector<BlockSteps>& blocks,
                            std::size_t shown, const TrajectoryLimits& limits = {});

/// Style rules of the table, among them the ten colours of confidence.
std::string trajectory_css();

}  // namespace blockscope
