// The open file behind a TraceWriter: every dataset of the schema, appended to by axis. Used by the
// writer's thread only. Internal to decode_record.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/files/output_file.h"
#include "decode_record/hdf5/h5.h"
#include "decode_record/schema/trace_header.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

/// Sets `bytes` to the value that stands for "not recorded": NaN, -1, or 0 for u8.
void fill_missing(std::vector<std::byte>& bytes, h5::Element element);

/// A finished trace whose rows a merged one shows without copying them.
struct VirtualSource {
  std::string file;  ///< as the merged file names it
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> lengths{};
};

/// The empty dataset that stands for a growing axis without coordinates; nullopt: there is none.
std::optional<h5::Dataset> open_bare_scale(const h5::File& file, Axis axis);

class TraceFile {
 public:
  /// Creates every dataset, scale and attribute, writes the fixed ones and starts SWMR writing;
  /// only then does the file get its name (until then `<path>.new`, which a kill may leave behind,
  /// and which must be free but for such a file). An existing file named `path` is replaced if
  /// `replace`. Throws TraceError while another process creates or writes the trace: of two that
  /// start at once, one gets it.
  static TraceFile create(const std::string& path, const TraceMeta& meta, bool replace);
  /// The same in the temporary file of an output, for traces that are written once (repack).
  /// `deflate` 1-9 compresses the growing datasets. Datasets of the kinds that is_virtual() names
  /// show the rows of `sources`, if there are any.
  static TraceFile create_in(const OutputFile& output, const TraceMeta& meta, int deflate,
                             const std::vector<VirtualSource>& sources);
  /// Opens a file left by a killed or suspended writer. The file is only read before all that its
  /// committed rows need was found in it: throws UsageError when `meta` differs, CorruptTrace when
  /// it was damaged or cut off by something else than a kill, and leaves it as it was.
  static TraceFile reopen(const std::string& path, const TraceMeta& meta);
  /// Throws TraceError while another process writes the trace `path`.
  static void check_no_writer(const std::string& path) { lock_writer(path); }
  /// Whether some process does.
  static bool has_writer(const std::string& path);
  enum class Left { nothing, removed, written, strange };
  /// Removes a file that a killed writer left; one that is being written, or none of ours, stays.
  static Left remove_left(const std::string& path);
  /// The same of one that was killed before its file had the name `path`.
  static Left remove_unborn(const std::string& path) { return remove_left(path + ".new"); }

  TraceFile(TraceFile&&) noexcept = default;
  TraceFile& operator=(TraceFile&&) noexcept = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() = default;

  const std::string& path() const { return file_.path; }
  bool has(Field field) const { return columns_[index(field)].dataset.has_value(); }
  /// Elements of an axis so far, pending ones included.
  std::int64_t length(Axis axis) const { return lengths_[static_cast<std::size_t>(axis)]; }

  /// Adds `count` to the length of an axis; the appends to its datasets follow in any order.
  void grow(Axis axis, std::int64_t count);
  /// Appends rows to a `column` dataset; kept in memory until write_pending().
  void append(Field field, const void* rows, std::size_t bytes);
  template <typename Value>
  void append_value(Field field, Value value) {
    append(field, &value, sizeof(Value));
  }
  /// Writes one row of a `row` or `row_layer` dataset, all layers.
  void write_row(Field field, std::int64_t row, const void* data, std::size_t bytes);
  /// Writes one layer of a `row_layer` dataset, or rows [first, first + count) of one layer of a
  /// `column_layer` dataset.
  void write_layer(Field field, std::int64_t first, std::int64_t count, std::int64_t layer,
                   const void* data, std::size_t bytes);
  /// Overwrites row `at` of a `column` dataset, or element 0 of a `cell`.
  void overwrite(Field field, std::int64_t at, const void* row);
  /// Reads rows of a column.
  std::vector<std::int64_t> read_ints(Field field, std::int64_t first, std::int64_t count) const;
  std::vector<std::uint8_t> read_bytes(Field field, std::int64_t first, std::int64_t count) const;

  void write_pending();
  void flush();             ///< everything written so far survives kill -9 when this returns
  void flush(Field field);  ///< only this dataset
  std::int64_t pending_bytes() const { return pending_bytes_; }
  /// Cuts an axis (drops what a killed writer left beyond the committed length).
  void truncate(Axis axis, std::int64_t length);
  /// Drops what a killed writer's arrays hold from row `length` on, also where it was killed
  /// between writing a chunk index and the extent that belongs to it: else rows without arrays that
  /// are written there later would show the arrays of rows that were never committed.
  void drop_rows_behind(std::int64_t length);
  /// Cuts the room reserved on every axis.
  void trim();
  /// Closes it and gives the file back, still locked, for its final name (of create_in(): nothing,
  /// the output has it). Throws TraceError when bytes of it are gone.
  OwnFile close();
  /// Throws TraceError when somebody else has cut the file since the last note_size(), or, with
  /// `named`, moved or removed it: then what is written is lost.
  void check_unharmed(bool named) const;
  void note_size() { size_ = own_.size(); }
  /// After a failed write: leaves the file as a kill would. Closing would write a superblock that
  /// claims more bytes than a full disk has taken.
  void abandon();

 private:
  struct Column {
    std::optional<h5::Dataset> dataset;
    std::int64_t written = 0;        // rows in the file
    std::vector<std::byte> pending;  // rows behind them
  };
  TraceFile(h5::File file, const TraceMeta& meta) : meta_(meta), file_(std::move(file)) {}
  /// `<path>.new`, empty and locked. What a killed writer left under this name is removed.
  static OwnFile create_unborn(const std::string& path);
  /// The trace in the file that the name `empty` opens; `path` is what it will be called.
  static TraceFile fill(const std::string& empty, const std::string& path, const TraceMeta& meta,
                        int deflate, const std::vector<VirtualSource>& sources);
  /// The file `path`, locked: a second writer is kept out while it lives. HDF5's own lock ends when
  /// SWMR starts.
  static OwnFile lock_writer(const std::string& path);
  static void restore_length(const OwnFile& file);
  [[noreturn]] void refuse_harm(const std::string& what) const;
  /// `path`: what the message calls the file `locked`.
  [[noreturn]] static void refuse_second_writer(const std::string& path, const std::string& locked);
  static void check_resumable(const std::string& path, const TraceMeta& meta);
  static std::size_t index(Field field) { return static_cast<std::size_t>(field); }
  Column& column(Field field);
  const Column& column(Field field) const;
  void create_datasets(int deflate, const std::vector<VirtualSource>& sources);
  void create_scales();
  void set_axis_extent(Axis axis, std::int64_t extent);

  TraceMeta meta_;
  OwnFile own_;  // outlives the file
  h5::File file_;
  std::array<Column, kNumFields> columns_;
  std::array<std::optional<h5::Dataset>, static_cast<std::size_t>(Axis::count)> bare_scales_;
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> lengths_{};
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> extents_{};
  std::int64_t pending_bytes_ = 0;
  std::int64_t size_ = 0;  // of the file after our last write
};

}  // namespace blockscope
