// The denoising steps of a trace, grouped by block: what every metric iterates over. Prefill and
// commit rows are left out; nothing crosses a block's border (DESIGN: steps are denoising steps of
// one block).
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
  std::int32_t changed = 0;         ///< M, inputs that differ from the step before
  std::int32_t masks_left = 0;      ///< masks in the block's input
  bool recorded = false;            ///< has arrays; false: filtered out by the recorder
};

/// Steps of one block, ascending by step, recorded or not. Steps may be missing at the end (a cut
/// trace) and, in `recorded` terms, anywhere.
struct BlockSteps {
  std::int64_t sequence = -1;
  std::int32_t block = -1;
  std::vector<StepRef> steps;
};

/// Which sequences and blocks a metric looks at; unset: all. Indices as in the trace.
struct RowSelection {
  std::optional<std::vector<std::int64_t>> sequences;
  std::optional<std::vector<std::int64_t>> blocks;
  bool contains(std::int64_t sequence, std::int64_t block) const;
};

/// Blocks in the order of their first row. Sequences marked `aborted` are left out: they were
/// decoded again under another index. Reads the columns of /steps in pieces; 48 bytes a step stay.
std::vector<BlockSteps> list_blocks(const TraceReader& trace, const RowSelection& selection = {});

}  // namespace blockscope
