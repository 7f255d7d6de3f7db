// The open file behind a TraceWriter: every dataset of the schema, appended to by axis. Used by the
// writer's thread only. Internal to decode_record.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/h5.h"
#include "decode_record/trace_header.h"
#include "decode_record/trace_layout.h"

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
  /// only then does the file get its name (until then `<path>.new`, which a kill may leave behind).
  /// An existing file of that name is replaced. Throws TraceError while another process creates or
  /// writes the trace: of two that start at once, one gets it.
  /// `deflate` 1-9 compresses the growing datasets, for files that are written once (repack).
  /// Datasets of the kinds that is_virtual() names show the rows of `sources`, if there are any.
  static TraceFile create(const std::string& path, const TraceMeta& meta, int deflate = 0,
                          const std::vector<VirtualSource>& sources = {});
  /// Large arrays, without indices into other datasets: what a merge needs not copy.
  static bool is_virtual(const DatasetSpec& spec) {
    return spec.storage == Storage::row || spec.storage == Storage::row_layer ||
           spec.storage == Storage::column_layer;
  }
  /// Opens a file left by a killed or suspended writer. The file is only read before all that its
  /// committed rows need was found in it: throws UsageError when `meta` differs, CorruptTrace when
  /// it was damaged or cut off by something else than a kill, and leaves it as it was.
  static TraceFile reopen(const std::string& path, const TraceMeta& meta);
  /// Throws TraceError while another process writes the trace `path`.
  static void check_no_writer(const std::string& path) { const WriterLock lock(path); }
  /// Whether some process does.
  static bool has_writer(const std::string& path);
  /// Removes a file that a killed writer left; one that is being written, or none of ours, stays.
  static void remove_left(const std::string& path);
  /// The same of one that was killed before its file had the name `path`.
  static void remove_unborn(const std::string& path) { remove_left(path + ".new"); }

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
  void close();
  /// After a failed write: leaves the file as a kill would. Closing would write a superblock that
  /// claims more bytes than a full disk has taken.
  void abandon();

 private:
  struct Column {
    std::optional<h5::Dataset> dataset;
    std::int64_t written = 0;        // rows in the file
    std::vector<std::byte> pending;  // rows behind them
  };
  /// Keeps a second writer out while this one lives; HDF5's own lock ends when SWMR starts.
  class WriterLock {
   public:
    /// `create`: makes an empty file if there is none. `name`: what messages call it.
    explicit WriterLock(const std::string& path, const std::string& name = "", bool create = false);
    WriterLock(WriterLock&& other) noexcept
        : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
    WriterLock& operator=(WriterLock&& other) noexcept {
      std::swap(path_, other.path_);
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~WriterLock();
    void restore_length() const;
    /// Whether `path` still names the locked file.
    bool names_this_file() const;
    /// Whether a writer that is dead left the file: it is empty, or has HDF5's mark of a writer.
    bool is_left_over() const;

   private:
    std::string path_;
    int fd_ = -1;
  };

  TraceFile(h5::File file, const TraceMeta& meta) : meta_(meta), file_(std::move(file)) {}
  static TraceFile create_unborn(const std::string& unborn, const std::string& path,
                                 const TraceMeta& meta, int deflate,
                                 const std::vector<VirtualSource>& sources);
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
  std::optional<WriterLock> lock_;  // outlives the file
  h5::File file_;
  std::array<Column, kNumFields> columns_;
  std::array<std::optional<h5::Dataset>, static_cast<std::size_t>(Axis::count)> bare_scales_;
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> lengths_{};
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> extents_{};
  std::int64_t pending_bytes_ = 0;
};

}  // namespace blockscope
