// The open file of a TraceWriter: appends to every dataset of the schema, by axis. Only the
// writer's thread uses it. Internal to decode_record.
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

/// Sets `bytes` to the value that means "not recorded": NaN, -1, or 0 for u8.
void fill_missing(std::vector<std::byte>& bytes, h5::Element element);

/// A finished trace. A merged trace shows its rows without copying them.
struct VirtualSource {
  std::string file;  ///< as the merged file names it
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> lengths{};
};

/// The empty dataset that represents a growing axis without coordinates; nullopt: there is none.
std::optional<h5::Dataset> open_bare_scale(const h5::File& file, Axis axis);

class TraceFile {
 public:
  /// Creates every dataset, scale and attribute, writes the fixed ones and starts SWMR writing.
  /// Only then does the file get the name `path`; until then it is `<path>.new`. That name must be
  /// free, or hold a file that a killed process left. An existing file `path` is replaced if
  /// `replace`. Throws TraceError while another process creates or writes the trace: if two start
  /// at once, one of them succeeds.
  static TraceFile create(const std::string& path, const TraceMeta& meta, bool replace);
  /// The same in the temporary file of an output, for traces that are written once (repack).
  /// `deflate` 1-9 compresses the growing datasets. If there are `sources`, the datasets for which
  /// is_virtual() is true show their rows.
  static TraceFile create_in(const OutputFile& output, const TraceMeta& meta, int deflate,
                             const std::vector<VirtualSource>& sources);
  /// Opens a file that a killed or suspended writer left. The file is not changed until all data of
  /// its committed rows were found. Throws UsageError if `meta` differs, and CorruptTrace if
  /// something other than a kill damaged or cut the file.
  static TraceFile reopen(const std::string& path, const TraceMeta& meta);
  /// Throws TraceError while another process writes the trace `path`.
  static void check_no_writer(const std::string& path) { lock_writer(path); }
  /// Whether some process writes the trace `path`.
  static bool has_writer(const std::string& path);
  enum class Left { nothing, removed, written, strange };
  /// Removes a file that a killed writer left. A file that is being written, or is not ours, stays.
  static Left remove_left(const std::string& path);
  /// The same for a writer that was killed before its file had the name `path`.
  static Left remove_unborn(const std::string& path) { return remove_left(path + ".new"); }

  TraceFile(TraceFile&&) noexcept = default;
  TraceFile& operator=(TraceFile&&) noexcept = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() = default;

  const std::string& path() const { return file_.path; }
  bool has(Field field) const { return columns_[index(field)].dataset.has_value(); }
  /// Number of elements of an axis so far, with pending ones.
  std::int64_t length(Axis axis) const { return lengths_[static_cast<std::size_t>(axis)]; }

  /// Adds `count` to the length of an axis; the appends to its datasets follow in any order.
  void grow(Axis axis, std::int64_t count);
  /// Appends rows to a `column` dataset. They stay in memory until write_pending().
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
  void flush();             ///< after it, everything written so far survives kill -9
  void flush(Field field);  ///< only this dataset
  std::int64_t pending_bytes() const { return pending_bytes_; }
  /// Cuts an axis: drops what a killed writer left after the committed length.
  void truncate(Axis axis, std::int64_t length);
  /// Drops what a killed writer's arrays hold from row `length` on, even if the kill came between
  /// writing a chunk index and its extent. Else later rows without arrays would show the arrays of
  /// rows that were never committed.
  void drop_rows_behind(std::int64_t length);
  /// Cuts the room reserved on every axis.
  void trim();
  /// Closes the file and returns it, still locked, for its final name. After create_in() the result
  /// is empty, because the output has the file. Throws TraceError if the file lost bytes.
  OwnFile close();
  /// Throws TraceError if somebody else has cut the file since the last note_size(). With `named`,
  /// also if somebody moved or removed it: what is written would be lost.
  void check_unharmed(bool named) const;
  void note_size() { size_ = own_.size(); }
  /// After a failed write: leaves the file as a kill would. Closing would write a superblock that
  /// claims more bytes than the full disk has stored.
  void abandon();

 private:
  struct Column {
    std::optional<h5::Dataset> dataset;
    std::int64_t written = 0;        // rows in the file
    std::vector<std::byte> pending;  // rows after them, in memory
  };
  TraceFile(h5::File file, const TraceMeta& meta) : meta_(meta), file_(std::move(file)) {}
  /// Makes `<path>.new`, empty and locked. Removes a file that a killed writer left under this
  /// name.
  static OwnFile create_unborn(const std::string& path);
  /// Makes the trace in the empty file that the name `empty` opens. `path` will be its name.
  static TraceFile fill(const std::string& empty, const std::string& path, const TraceMeta& meta,
                        int deflate, const std::vector<VirtualSource>& sources);
  /// Locks the file `path` against a second writer while the result lives. HDF5's own lock ends
  /// when SWMR starts.
  static OwnFile lock_writer(const std::string& path);
  static void restore_length(const OwnFile& file);
  [[noreturn]] void refuse_harm(const std::string& what) const;
  /// `path`: the name of the file `locked` in the message.
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
