// The denoising steps of a trace, grouped by block, for all metrics. Prefill and commit rows are
// left out. Steps are the denoising steps of one block, so nothing compares rows of two blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// One denoising step of one block.
struct StepRef {
  std::int64_t row = -1;
  std::int64_t sequence = -1;
  std::int32_t block = -1;
  std::int32_t block_start = 0;     ///< absolute position of the block's first token
  std::int32_t step = 0;            ///< from 1
  std::int32_t context_length = 0;  ///< N, external keys
  std::int32_t changed = 0;         ///< M, inputs that differ from the previous step
  std::int32_t decided = 0;         ///< M and positions that the previous step decided as [MASK];
                                    ///< M in traces without /steps/since_read
  std::int32_t masks_left = 0;      ///< masks in the block's input
  bool recorded = false;            ///< has arrays; false: the recorder left them out
};

/// Steps of one block, ascending, recorded or not. Steps may be missing at the end of a cut trace.
/// Steps that were not recorded may be anywhere.
struct BlockSteps {
  std::int64_t sequence = -1;
  std::int32_t block = -1;
  std::vector<StepRef> steps;
};

/// The sequences and blocks that a metric uses, by their indices in the trace; unset: all.
struct RowSelection {
  std::optional<std::vector<std::int64_t>> sequences;
  std::optional<std::vector<std::int64_t>> blocks;
  bool contains(std::int64_t sequence, std::int64_t block) const;
};

/// Blocks in the order of their first row. Sequences marked `aborted` are left out, because they
/// were decoded again under another index. Reads the columns of /steps in pieces and keeps 56 bytes
/// a step.
std::vector<BlockSteps> list_blocks(const TraceReader& trace, const RowSelection& selection = {});

}  // namespace blockscope
