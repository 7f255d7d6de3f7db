// Reads a trace, finished or `.partial`, also while it is being written (then refresh() picks up
// new rows). Streams: a call reads the rows asked for and never a whole dataset. Everything in the
// file is checked; a damaged file gives TraceError, never anything else. Not thread-safe; all
// readers of a process share HDF5's one lock, so use them from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode_record/frames/decode_record.h"
#include "decode_record/read/located_values.h"
#include "decode_record/schema/trace_events.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

struct TraceInfo {
  std::string path;  ///< the file really opened
  std::int64_t format_version = 0;
  TraceMeta meta;                  ///< without `pieces`: see TraceReader::pieces()
  bool complete = false;           ///< the run ended by itself
  bool partial = false;            ///< still written, or left by a killed run
  std::int64_t num_rows = 0;       ///< committed
  std::int64_t num_sequences = 0;  ///< committed
  std::int64_t file_bytes = 0;
};

struct SequenceInfo {
  std::string name;
  PromptHash prompt_hash{};
  std::vector<std::int64_t> prompt;  ///< token ids
  std::int64_t gen_length = 0;
  std::string answer;
  std::string metric;
  std::string text;
  float score = 0.0F;  ///< NaN: none
  bool aborted = false;
  FinishReason finish_reason = FinishReason::unfinished;
};

/// The scalar columns of /steps for a range of rows; every vector has `count` elements.
struct StepColumns {
  std::int64_t first_row = 0;
  std::int64_t count = 0;
  std::vector<std::int32_t> sequence, block, block_start, step, context_length, changed, masks_left;
  std::vector<std::int64_t> pass, previous, pass_time_ns;
  std::vector<std::uint8_t> kind, recorded;
};

/// What is fixed for a trace, finished or `.partial`, without `pieces`; nothing else in it is read
/// or checked. Throws as TraceReader does.
TraceMeta read_trace_meta(const std::string& path);

class TraceReader {
 public:
  /// Opens `path`; when it doesn't exist, `<path>.partial`. Throws NotATrace, UnsupportedVersion,
  /// CorruptTrace or TraceError.
  explicit TraceReader(const std::string& path);
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  ~TraceReader();

  const TraceInfo& info() const;
  /// Picks up rows committed since; follows the rename at the end of a run. True when there is
  /// news.
  bool refresh();

  bool has(Field field) const;
  StepColumns steps(std::int64_t first_row, std::int64_t count) const;
  SequenceInfo sequence(std::int64_t index) const;
  /// Per sequence: 1 when it was cut by a kill and decoded again under another index.
  std::vector<std::uint8_t> aborted() const;
  /// Rows of a sequence, ascending.
  std::vector<std::int64_t> rows_of(std::int64_t sequence) const;

  /// Values of `count` rows of a dataset with a row axis, row-major, all other axes whole.
  std::vector<float> read_floats(Field field, std::int64_t first_row, std::int64_t count) const;
  std::vector<std::int32_t> read_ints(Field field, std::int64_t first_row,
                                      std::int64_t count) const;
  /// The same for one row and one recorded layer (index into meta.layers).
  std::vector<float> read_floats_at(Field field, std::int64_t row, std::int64_t layer) const;
  std::vector<std::int32_t> read_ints_at(Field field, std::int64_t row, std::int64_t layer) const;
  /// Rows [first_row, first_row + count) as they lie in the file (bfloat16 words are not widened)
  /// into the caller's buffer, which must have exactly their size; one recorded layer of a dataset
  /// with a layer axis, or kAllLayersOfRow.
  static constexpr std::int64_t kAllLayersOfRow = -1;
  void read_raw(Field field, std::int64_t first_row, std::int64_t count, std::int64_t layer,
                std::span<std::byte> out) const;
  /// Asks the system to have what read_raw would read of one row in memory soon, and from then on
  /// to read nothing of the file that was not asked for. Only for arrays stored in a chunk of their
  /// own per row and layer, or per row; no effect for others, and for compressed and merged files.
  void prefetch(Field field, std::int64_t row, std::int64_t layer) const;
  /// Where what read_raw would read of one row lies; nullopt where it does not lie in one piece as
  /// it is (compressed, more than a chunk or part of one, never written): read_raw then. The values
  /// of a merged trace are found in the files it was made of.
  std::optional<LocatedValues> locate(Field field, std::int64_t row, std::int64_t layer) const;
  /// Whether the row's values of this dataset were written (they are fill values otherwise).
  bool written(Field field, std::int64_t row, std::int64_t layer) const;

  /// External keys or values of one layer of a row. Committed ones of positions [0, length), from
  /// the prefill and commit rows before `row`; in a bidirectional trace those of every position
  /// outside the row's block, as the latest row up to and with `row` wrote them. field = prefix_key
  /// or prefix_value; values [length, kv_head, channel].
  struct Prefix {
    std::vector<std::int32_t> positions;  ///< [length], ascending
    std::vector<float> values;            ///< [length, recorded KV heads, head_dim]
  };
  Prefix prefix(Field field, std::int64_t row, std::int64_t layer) const;

  /// What row `row` decided (an empty delta for most prefill and commit rows), with explicit steps.
  FrameDelta delta(std::int64_t row) const;
  /// The state of the row's sequence before the row.
  Frame frame_before(std::int64_t row) const;
  /// Frame t of a sequence: the state before its t-th denoising row, t from 0; t = their number
  /// gives the state after all rows. Throws FrameError when out of range.
  Frame frame(std::int64_t sequence, std::int64_t t) const;
  /// The trajectory of a sequence: one delta per denoising row.
  DecodeRecord decode_record(std::int64_t sequence) const;

  /// What row `row` computed, by model layer (has_cache); the rows around it are read with it.
  std::vector<LayerRanges> cache(std::int64_t row) const;
  /// The tokens that row `row` took back; none without has_revocations.
  std::vector<RevokedToken> revoked(std::int64_t row) const;

  /// Vocabulary piece of a token as bytes; empty when the trace has none.
  std::string piece(std::int64_t token) const;
  std::int64_t num_pieces() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockscope
