// A trace as plain datasets, cut to what was committed: unconverted elements, without the meaning
// that a TraceReader adds. For tools that treat all datasets alike (inventory, comparison,
// repacking). Internal to decode_record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/hdf5/h5.h"
#include "decode_record/read/trace_check.h"
#include "decode_record/read/whole_rows.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {

class RawTrace {
 public:
  /// `checked`: every committed row must be valid and complete. `salvage`: for a cut or damaged
  /// file; only rows that are whole, and these must be valid. `known`: the caller has just checked
  /// the trace.
  enum class Opening : std::uint8_t { checked, salvage, known };
  /// Opens `path`, or `<path>.partial` if `path` doesn't exist. Throws NotATrace,
  /// UnsupportedVersion, CorruptTrace or TraceError.
  explicit RawTrace(const std::string& path, Opening opening = Opening::checked,
                    Writer writer = Writer::maybe);

  const std::string& path() const { return stored_.path(); }
  const TraceMeta& meta() const { return stored_.meta(); }
  std::uint64_t file_bytes() const { return stored_.file_bytes(); }
  bool complete() const { return complete_; }
  /// [length(Axis::sequence)] As of the opening, like everything else.
  const std::vector<std::uint8_t>& finish_reasons() const {
    return stored_.committed().finish_reasons;
  }
  /// Opening::salvage: what was lost.
  const WholeRows& whole() const { return whole_; }

  bool has(Field field) const { return stored_.has(field); }
  const h5::Dataset& dataset(Field field) const { return stored_.opened(field); }
  /// Number of committed elements of a growing axis.
  std::int64_t length(Axis axis) const { return lengths_[static_cast<std::size_t>(axis)]; }
  /// Shape of a dataset, its growing axis cut to what is committed.
  std::vector<hsize_t> shape(Field field) const;
  /// Bytes of one index of the first axis.
  std::size_t row_bytes(Field field) const;
  /// Elements [first, first + count) of the first axis, raw words, all other axes whole.
  std::vector<std::byte> read(Field field, std::int64_t first, std::int64_t count) const;
  /// The same for one layer, for datasets with the layer as second axis.
  std::vector<std::byte> read_layer(Field field, std::int64_t first, std::int64_t count,
                                    std::int64_t layer) const;
  /// Integers (u8, i32 or i64) of a dataset's rows, widened.
  std::vector<std::int64_t> read_integers(Field field, std::int64_t first,
                                          std::int64_t count) const;

 private:
  void find_lengths();
  std::int64_t text_bytes() const;
  std::int64_t largest(Field field, std::int64_t count) const;
  void set_length(Axis axis, Field by, std::int64_t value);
  void set_from_end(Axis axis, Field end, std::int64_t rows);

  StoredTrace stored_;
  bool complete_ = false;
  WholeRows whole_;
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> lengths_{};
};

}  // namespace blockscope
