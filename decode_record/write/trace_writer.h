// Writes a trace file while a model decodes. A worker thread inside owns HDF5. append_row passes it
// owned buffers through a queue with a limit in bytes, and blocks if the disk is slower than the
// model. So nothing is dropped and memory doesn't grow. While it is written, the file is
// `<path>.partial` in SWMR mode. Every row counted by committed() stays readable after kill -9 at
// any moment, and a viewer can follow the file.
//
// The next call throws an error of the worker (disk full, lost file system) as TraceError. Rows
// that were committed before it stay readable. Only one thread at a time may call; committed() and
// bytes_appended() may be called from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/frames/frame_delta.h"
#include "decode_record/schema/trace_events.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

/// Bytes that `owner` keeps alive until the row is written.
struct Buffer {
  std::shared_ptr<const void> owner;
  const void* data = nullptr;
  std::size_t size = 0;
};

/// Takes a vector of a trivially copyable element.
template <typename Element>
Buffer make_buffer(std::vector<Element> values) {
  auto owner = std::make_shared<std::vector<Element>>(std::move(values));
  const void* data = owner->data();
  const std::size_t size = owner->size() * sizeof(Element);
  return Buffer{std::move(owner), data, size};
}

inline constexpr std::int64_t kAllLayers = -1;

/// Values of one dataset for one row, row-major, already in the file's element type. The shape is
/// that of the dataset without its row axis, and without the layer axis if `layer` is given. Slices
/// of prefix_key and prefix_value have the shape [prefix_length, kv_head, channel] per layer, or
/// [prefix_length, layer, kv_head, channel].
struct ArraySlice {
  Field field;
  std::int64_t layer = kAllLayers;  ///< index into TraceMeta::layers (not a model layer)
  Buffer data;
};

/// One forward pass of one sequence.
struct TraceRow {
  std::int64_t sequence = 0;  ///< as returned by begin_sequence
  std::int64_t pass = 0;      ///< forward pass of the run
  PassKind kind = PassKind::denoise;
  std::int64_t block = -1;
  std::int64_t block_start = 0;
  std::int64_t step = 0;
  std::int64_t context_length = 0;  ///< N
  std::int64_t changed = 0;         ///< M
  std::int64_t since_read = 0;      ///< tokens decided since the block's last pass that read the
                                    ///< prefix, that pass's own included (has_since_read)
  std::int64_t rows_read = 0;  ///< block rows that read the prefix in every head; 0: a prefill,
                               ///< or heads may reuse
  std::int64_t masks_left = 0;
  std::vector<std::uint8_t> valid;  ///< [B], or empty: all valid (none in a prefill)
  bool recorded = false;            ///< passed the recorder's filters
  std::int64_t pass_time_ns = 0;
  float timestep = std::numeric_limits<float>::quiet_NaN();  ///< of a continuous model
  std::optional<FrameDelta> delta;    ///< what this pass decided; positions count after the prompt
  std::vector<RevokedToken> revoked;  ///< the writer adds missing masks to `delta`
  std::vector<LayerRanges> cache;     ///< [num_layers] with has_cache; empty: nothing
  std::int64_t prefix_start = 0;      ///< absolute position of the first key that it committed
  std::int64_t prefix_length = 0;     ///< keys that it committed; slices must match (level full)
  std::vector<ArraySlice> arrays;     ///< datasets of the run; absent ones keep the fill value
};

struct SequenceStart {
  std::string name;
  std::vector<std::int64_t> prompt;  ///< token ids
  std::int64_t gen_length = 0;       ///< positions after the prompt, all masks at the start
  std::string answer;                ///< expected answer, may be empty
  std::string metric;                ///< name of the metric, may be empty
  std::vector<std::uint8_t> prompt_regions = {};  ///< [prompt], indices into meta.regions; empty:
                                                  ///< only `first` and `prompt`
};

struct SequenceEnd {
  FinishReason reason = FinishReason::length;
  std::string text;            ///< generated text, may be empty
  std::optional<float> score;  ///< value of the metric
};

struct TraceWriterOptions {
  bool force = false;                    ///< replace an existing trace
  std::size_t queue_bytes = 64U << 20U;  ///< limit of the queue
  std::int64_t commit_interval_ms = 50;  ///< longest time a written row waits for its commit
};

/// What a resumed trace already holds.
struct ResumeState {
  std::vector<PromptHash> finished;  ///< prompts of sequences that ended, aborted ones excluded
  std::vector<std::string> finished_names;  ///< [finished.size()]
  std::int64_t num_rows = 0;
  std::int64_t num_sequences = 0;
  std::int64_t next_pass = 0;  ///< one more than the largest pass
};

/// Makes the checks of TraceWriter's constructor, for callers with much work before it. Throws
/// UsageError if a trace `path` or its `.partial` exists (without force) or `path` is a folder.
/// Throws TraceError if its folder doesn't exist or another process writes the `.partial`.
void check_trace_target(const std::string& path, bool force);

class TraceWriter {
 public:
  /// Creates `<path>.partial`. Throws UsageError if `path` or its `.partial` exists (without force)
  /// or `meta` is invalid, TraceError if the file can't be written.
  TraceWriter(std::string path, TraceMeta meta, TraceWriterOptions options = {});

  /// Opens `<path>.partial` after a kill or suspend(), drops what was not committed, marks
  /// sequences without an end as aborted, and goes on after them. `meta` must describe the same
  /// datasets.
  static TraceWriter resume(std::string path, const TraceMeta& meta, ResumeState& state,
                            TraceWriterOptions options = {});

  TraceWriter(TraceWriter&&) noexcept;
  TraceWriter& operator=(TraceWriter&&) noexcept;
  /// Without finish() or suspend(): writes what is queued and keeps the `.partial`. Never throws.
  ~TraceWriter();

  /// Index of the new sequence.
  std::int64_t begin_sequence(SequenceStart start);
  /// Throws FrameError or UsageError if the row contradicts the meta or its sequence's frame.
  void append_row(TraceRow row);
  void end_sequence(std::int64_t sequence, SequenceEnd end);

  /// Rows that survive kill -9 now.
  std::int64_t committed() const;
  /// Waits until everything appended so far is committed.
  void commit();
  /// Bytes of row data appended so far.
  std::int64_t bytes_appended() const;
  /// The file being written, `<path>.partial`.
  const std::string& partial_path() const;

  /// Writes the rest, marks the trace complete, closes it and renames it to `path`.
  void finish();
  /// Writes the rest and closes the file as unfinished. It keeps the name `.partial`, and resume()
  /// can go on with it.
  void suspend();

 private:
  class Impl;
  explicit TraceWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockscope
