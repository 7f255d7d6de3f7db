// Traces of tens of gigabytes that take little disk: the arrays of the first rows are really
// written, those of all others are holes in the file, which read as zeros. Everything small
// (coordinates, trajectory, summaries, sets) is there for every row. For measurements: unlike
// make_trace's, the values are only plausible.
#pragma once

#include <cstdint>
#include <string>

namespace blockscope::testing {

struct VastTraceOptions {
  std::int64_t layers = 36, heads = 32, kv_heads = 8, head_dim = 128;
  std::int64_t block_length = 32;  ///< one token is decided per step
  std::int64_t blocks = 6;         ///< of a sequence
  std::int64_t sequences = 11;
  std::int64_t real_rows = 32;  ///< denoising rows from the first on whose arrays have values
};

/// Writes a trace of level outputs. Uses sparse_writes.h's switch.
void make_vast_trace(const std::string& path, const VastTraceOptions& options);

}  // namespace blockscope::testing
