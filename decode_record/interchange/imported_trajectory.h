// A decoding trajectory that another tool wrote, checked, and on its way into a trace: what the
// readers of foreign files (import_klass.h, import_frames.h) make, and write_imported() stores.
// Positions count after the prompt unless they are called absolute.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/frames/frame_delta.h"
#include "decode_record/write/trace_writer.h"

namespace blockscope {

/// The most probable token of a position that was a mask at a step.
struct BestToken {
  std::int64_t position = 0;
  std::int64_t token = 0;
  float confidence = 0.0F;
};

struct ImportedStep {
  std::int64_t block = 0;  ///< index in the grid of blocks (ImportedTrajectory::block_causal)
  SequenceDelta delta;     ///< resolved: compact, with explicit steps
  std::vector<BestToken> best;
  std::vector<RevokedToken> revoked;  ///< by position
};

struct ImportedSequence {
  SequenceStart start;
  SequenceDelta before;  ///< what differs from all masks before the first step; resolved
  std::vector<ImportedStep> steps;
  SequenceEnd end;
};

struct ImportedTrajectory {
  std::string tool;  ///< "KLASS", "d2Cache"
  std::int64_t vocab_size = 0;
  std::int64_t mask_token_id = 0;
  std::int64_t block_length = 0;
  bool block_causal = false;  ///< blocks count from position 0, not from the prompt's end
  std::vector<ImportedSequence> sequences;
  std::string kept = "{}";         ///< JSON: what the trace has no dataset for
  std::vector<std::string> notes;  ///< what of the file is not kept, one sentence each
};

/// What the files do not say, or what must agree with what they say.
struct ImportFacts {
  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> mask_token_id;
  std::optional<std::int64_t> block_length;
  std::optional<std::int64_t> prompt_length;
  std::vector<std::int64_t> prompt;  ///< token ids, where the file holds none; may be empty
  bool block_causal = false;         ///< --block-causal
};

/// The metadata of a trace of level `trajectory` whose model nobody knows, but for these; blocks,
/// run_json and pieces are the caller's.
TraceMeta imported_model(const std::string& tool, std::int64_t vocab_size,
                         std::int64_t mask_token_id);

/// The metadata of its trace; run_json and pieces are the caller's.
TraceMeta imported_meta(const ImportedTrajectory& trajectory);

/// Whether the trace knows its model's shape; an imported one does not, and says 1 everywhere.
bool knows_model_shape(const TraceMeta& meta);

/// Appends all sequences. `between` is called before each of them.
void write_imported(const ImportedTrajectory& trajectory, TraceWriter& writer,
                    const std::function<void()>& between);

}  // namespace blockscope
