// A checked decoding trajectory of another tool. The readers of foreign files (import_klass.h,
// import_frames.h) make it, and write_imported() stores it as a trace. Positions count after the
// prompt unless they are called absolute.
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
  SequenceDelta before;  ///< tokens that are decided before the first step; resolved
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
  std::string kept = "{}";         ///< JSON: values for which a trace has no dataset
  std::vector<std::string> notes;  ///< parts of the file that are not kept, one sentence each
};

/// Facts that the user gives: what the files lack, or what must agree with the files.
struct ImportFacts {
  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> mask_token_id;
  std::optional<std::int64_t> block_length;
  std::optional<std::int64_t> prompt_length;
  std::vector<std::int64_t> prompt;  ///< token ids, for a file without a prompt; may be empty
  bool block_causal = false;         ///< --block-causal
};

/// The metadata of a trace of level `trajectory` with an unknown model, except for these values.
/// The caller sets blocks, run_json and pieces.
TraceMeta imported_model(const std::string& tool, std::int64_t vocab_size,
                         std::int64_t mask_token_id);

/// The metadata of the trajectory's trace. The caller sets run_json and pieces.
TraceMeta imported_meta(const ImportedTrajectory& trajectory);

/// Whether the trace knows its model's shape. An imported trace does not; its sizes are all 1.
bool knows_model_shape(const TraceMeta& meta);

/// Appends all sequences. `between` is called before each of them.
void write_imported(const ImportedTrajectory& trajectory, TraceWriter& writer,
                    const std::function<void()>& between);

}  // namespace blockscope
