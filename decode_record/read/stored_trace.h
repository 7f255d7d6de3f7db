// An open trace as raw rows of its datasets. HDF5 finds the bytes and returns them unconverted,
// because its own conversion of bfloat16 is slow. Internal to decode_record.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode_record/hdf5/h5.h"
#include "decode_record/read/located_values.h"
#include "decode_record/read/trace_open.h"
#include "decode_record/schema/trace_header.h"

namespace blockscope {

/// What a trace holds at one moment. All that these numbers count is in the file, whatever a writer
/// adds later.
struct Committed {
  std::int64_t rows = 0;
  std::int64_t sequences = 0;
  bool complete = false;                     ///< the run ended by itself; nothing will be added
  std::vector<std::uint8_t> finish_reasons;  ///< [sequences]; ended sequences have all their rows
};

/// Throw CorruptTrace for an impossibly large row, and for a read of more than a file of
/// `file_bytes` can hold. Values that were never written take no space on disk, but reading them
/// takes memory.
void check_row_size(const h5::Dataset& dataset);
void check_read_size(const h5::Dataset& dataset, std::uint64_t bytes, std::uint64_t file_bytes);

class StoredTrace {
 public:
  /// Opens existing_trace(path) and calls look().
  explicit StoredTrace(const std::string& path, Writer writer = Writer::maybe);

  /// As of the last look(). Datasets and their lengths are at least as new.
  const Committed& committed() const { return committed_; }
  /// Reads how much is committed now. Throws CorruptTrace if the datasets are shorter.
  void look();

  const std::string& path() const { return file_.path; }
  const h5::File& file() const { return file_; }
  const TraceMeta& meta() const { return meta_; }
  std::uint64_t file_bytes() const { return bytes_.size(); }
  bool has(Field field) const;
  /// Rows along the first axis, as the file has them now.
  std::int64_t extent(Field field) const;
  const h5::Dataset& opened(Field field) const { return dataset(field); }
  /// From now on, values that are positions are checked against this limit
  /// (TraceCheck::positions()).
  void set_positions(std::int64_t positions) { positions_ = positions; }

  /// How many of the first `count` rows of an extendible dataset have their bytes in the file, by
  /// its chunk index. Stops at a chunk that can't be looked up. `why` gets the reason for stopping.
  std::int64_t whole_rows(Field field, std::int64_t count, std::string* why = nullptr) const;
  /// Throws CorruptTrace if the file was cut: it ends before the last of `rows` rows.
  void check_not_cut(std::int64_t rows) const;
  /// Throws TraceError if the chunks of a dataset can't be looked up, up to its extent.
  void check_index(Field field) const;

  /// Elements [first, first + count) of the first axis in the file's element type, for one recorded
  /// layer or for all (kAllLayersOfRow).
  static constexpr std::int64_t kAllLayersOfRow = -1;
  std::vector<std::byte> read(Field field, std::int64_t first, std::int64_t count,
                              std::int64_t layer) const;
  /// The same into `out`, which must have exactly the size of the values.
  void read_into(Field field, std::int64_t first, std::int64_t count, std::int64_t layer,
                 std::span<std::byte> out) const;
  /// See TraceReader::prefetch.
  void prefetch(Field field, std::int64_t row, std::int64_t layer) const;
  /// See TraceReader::locate.
  std::optional<LocatedValues> locate(Field field, std::int64_t row, std::int64_t layer) const;
  bool chunk_written(Field field, std::int64_t row, std::int64_t layer) const;

  template <typename Value>
  std::vector<Value> column(Field field, std::int64_t first, std::int64_t count) const;

 private:
  struct Slot {
    std::optional<h5::Dataset> dataset;
    bool stale = false;
  };
  /// The part of a dataset that is read.
  struct Box {
    std::array<hsize_t, kMaxRank> starts{};
    std::array<hsize_t, kMaxRank> lengths{};
    std::size_t rank = 0;
    std::size_t bytes = 0;
    std::span<const hsize_t> start() const { return std::span(starts).first(rank); }
    std::span<const hsize_t> shape() const { return std::span(lengths).first(rank); }
  };
  h5::Dataset& dataset(Field field) const;
  h5::Dataset open(Field field) const;
  /// Makes the next access to each dataset refresh it from the file.
  void expire();
  std::int64_t cell(Field field) const;
  /// The value of the cell `committed`, which must not exceed the extent of `column`.
  std::int64_t count(Field committed, Field column) const;
  void check_range(Field field, std::int64_t first, std::int64_t count,
                   std::span<const std::byte> values) const;
  std::int64_t whole_rows_of_layer(Field field, std::int64_t layer, std::int64_t count,
                                   std::string* why) const;
  Box box(Field field, std::int64_t first, std::int64_t count, std::int64_t layer) const;

  h5::File file_;
  ReadOnlyFile bytes_;
  TraceMeta meta_;
  Committed committed_;
  mutable std::array<Slot, kNumFields> slots_;
  std::int64_t positions_ = -1;  // unknown
};

template <typename Value>
std::vector<Value> StoredTrace::column(Field field, std::int64_t first, std::int64_t count) const {
  const std::vector<std::byte> rows = read(field, first, count, kAllLayersOfRow);
  std::vector<Value> values(rows.size() / sizeof(Value));
  if (!values.empty()) {
    std::copy_n(rows.data(), values.size() * sizeof(Value),
                reinterpret_cast<std::byte*>(values.data()));
  }
  return values;
}

}  // namespace blockscope
