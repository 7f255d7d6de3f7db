// Reads a trace, finished or `.partial`, even while it is being written (refresh() picks up new
// rows). A call reads only the requested rows, never a whole dataset. Everything in the file is
// checked; a damaged file always gives TraceError. Not thread-safe. All readers of a process share
// HDF5's one lock, so use them from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decode_record/frames/decode_record.h"
#include "decode_record/read/located_values.h"
#include "decode_record/schema/trace_events.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

struct TraceInfo {
  std::string path;  ///< the file that was really opened
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
  std::vector<std::int64_t> prompt;          ///< token ids
  std::vector<std::uint8_t> prompt_regions;  ///< indices into meta.regions; empty: without parts
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
  std::vector<std::int32_t> since_read, rows_read;  ///< empty without has_since_read
  std::vector<std::int64_t> pass, previous, pass_time_ns;
  std::vector<std::uint8_t> kind, recorded;
};

/// The fixed metadata of a trace, finished or `.partial`, without `pieces`. Nothing else in the
/// file is read or checked. Throws as TraceReader does.
TraceMeta read_trace_meta(const std::string& path);

class TraceReader {
 public:
  /// Opens `path`, or `<path>.partial` if `path` doesn't exist. Throws NotATrace,
  /// UnsupportedVersion, CorruptTrace or TraceError.
  explicit TraceReader(const std::string& path);
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  ~TraceReader();

  const TraceInfo& info() const;
  /// Picks up rows that were committed since the last call, and follows the rename at the end of a
  /// run. True if anything changed.
  bool refresh();

  bool has(Field field) const;
  StepColumns steps(std::int64_t first_row, std::int64_t count) const;
  SequenceInfo sequence(std::int64_t index) const;
  /// Sequences [first, first + count). Takes much less time than one call for each of them.
  std::vector<SequenceInfo> sequences(std::int64_t first, std::int64_t count) const;
  /// Per sequence: 1 if a kill cut it and it was decoded again under another index.
  std::vector<std::uint8_t> aborted() const;
  /// Rows of a sequence, ascending.
  std::vector<std::int64_t> rows_of(std::int64_t sequence) const;

  /// Values of `count` rows of a dataset with a row axis, row-major, all other axes whole.
  std::vector<float> read_floats(Field field, std::int64_t first_row, std::int64_t count) const;
  std::vector<std::int32_t> read_ints(Field field, std::int64_t first_row,
                                      std::int64_t count) const;
  /// The same for one row and one recorded layer (index into meta.layers), without the padding of
  /// ragged layers (own_values).
  std::vector<float> read_floats_at(Field field, std::int64_t row, std::int64_t layer) const;
  std::vector<std::int32_t> read_ints_at(Field field, std::int64_t row, std::int64_t layer) const;
  /// Reads rows [first_row, first_row + count) unconverted (bfloat16 words are not widened) into
  /// `out`, which must have exactly their size. `layer`: one recorded layer of a dataset with a
  /// layer axis, or kAllLayersOfRow.
  static constexpr std::int64_t kAllLayersOfRow = -1;
  void read_raw(Field field, std::int64_t first_row, std::int64_t count, std::int64_t layer,
                std::span<std::byte> out) const;
  /// Asks the system to load into memory soon what read_raw would read of one row. From then on,
  /// the system reads nothing else of the file ahead. Works only for arrays with one chunk per row,
  /// or per row and layer. No effect for other arrays, and for compressed and merged files.
  void prefetch(Field field, std::int64_t row, std::int64_t layer) const;
  /// The place of what read_raw would read of one row. nullopt if the values are not one
  /// unconverted piece (compressed, not exactly one chunk, or never written); use read_raw then.
  /// The values of a merged trace are found in the files that it was made from.
  std::optional<LocatedValues> locate(Field field, std::int64_t row, std::int64_t layer) const;
  /// Whether the row's values of this dataset were written; if not, they are fill values.
  bool written(Field field, std::int64_t row, std::int64_t layer) const;

  /// External keys or values of one layer of a row; field = prefix_key or prefix_value; values
  /// [length, kv_head, channel], those of the layer (LayerSizes). These are the committed ones,
  /// from the prefill and commit rows before `row`: of positions [0, length), or of the newest ones
  /// that the layer's window has. In a bidirectional trace they are those of every position outside
  /// the row's block, as last written by a row up to and including `row`. `kv_head`: only this
  /// recorded slot.
  struct Prefix {
    std::vector<std::int32_t> positions;  ///< [length], ascending
    std::vector<float> values;            ///< [length, the layer's recorded KV heads or 1, its
                                          ///< head_dim]
  };
  Prefix prefix(Field field, std::int64_t row, std::int64_t layer,
                std::optional<std::size_t> kv_head = std::nullopt) const;

  /// What row `row` decided (an empty delta for most prefill and commit rows), with explicit steps.
  /// Reads and keeps the rows around it too.
  FrameDelta delta(std::int64_t row) const;
  /// The state of the row's sequence before this row.
  Frame frame_before(std::int64_t row) const;
  /// Frame t of a sequence: the state before its t-th denoising row, t from 0. If t is the number
  /// of denoising rows: the state after all rows. Throws FrameError when out of range.
  Frame frame(std::int64_t sequence, std::int64_t t) const;
  /// The trajectory of a sequence: one delta per denoising row.
  DecodeRecord decode_record(std::int64_t sequence) const;

  /// What row `row` computed, by model layer (has_cache). Reads and keeps the rows around it too.
  std::vector<LayerRanges> cache(std::int64_t row) const;
  /// The tokens that row `row` took back; none without has_revocations.
  std::vector<RevokedToken> revoked(std::int64_t row) const;

  /// Vocabulary piece of a token as bytes; empty if the trace has none.
  std::string piece(std::int64_t token) const;
  std::int64_t num_pieces() const;
  /// The tokens whose piece is one of these texts, ascending. Reads the whole vocabulary.
  std::vector<std::int64_t> tokens_of_pieces(std::span<const std::string_view> pieces) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockscope
