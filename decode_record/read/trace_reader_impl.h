// The state of a TraceReader, shared by the files that implement it. Internal to decode_record.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/read/stored_trace.h"
#include "decode_record/read/trace_check.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

class TraceReader::Impl {
 public:
  explicit Impl(const std::string& path);

  /// Throw unless the rows are committed, or the sequence is.
  void check_rows(std::int64_t first, std::int64_t count) const;
  void check_sequence(std::int64_t sequence) const;
  /// The committed rows of a sequence.
  struct Rows {
    std::vector<std::int64_t> all;
    std::vector<std::int64_t> denoise;
  };
  const Rows& rows_of(std::int64_t sequence);

  void read_counts();
  std::vector<std::int64_t> prompt(std::int64_t sequence) const;
  std::vector<SequenceInfo> sequences(std::int64_t first, std::int64_t count) const;
  /// The range [begin, end) of a row in the elements that `end_field` counts.
  std::pair<std::int64_t, std::int64_t> range(Field end_field, std::int64_t row,
                                              Field elements) const;
  void check_range(Field end_field, std::int64_t row, Field elements, std::int64_t begin,
                   std::int64_t end) const;
  FrameDelta delta(std::int64_t row);
  Frame keyframe(std::int64_t index, std::int64_t sequence) const;
  Frame frame_before(std::int64_t row);
  std::vector<LayerRanges> cache(std::int64_t row);
  std::vector<RevokedToken> revoked(std::int64_t row);
  template <typename Value>
  Value value(Field field, std::int64_t row) const {
    return raw.column<Value>(field, row, 1).at(0);
  }
  [[noreturn]] void corrupt(std::string_view what) const;

  std::string requested;  // the path the user gave
  StoredTrace raw;
  TraceInfo info;

 private:
  static constexpr std::int64_t kWindowRows = 256;  // of both kinds of windows
  /// Ranges of rows [first, first + count), for cache().
  struct CacheWindow {
    std::int64_t first = 0, count = 0;
    struct Part {
      std::int64_t begin = 0;         // of the first row's elements
      std::vector<std::int64_t> end;  // [count, num_layers]
      std::vector<std::int32_t> start, stop;
    };
    std::array<Part, 3> parts;  // queries, keys, values
  };
  void read_cache(std::int64_t row);
  /// Rows [first, first + count) of a CSR dataset and its elements, for delta() and revoked(). A
  /// call of HDF5 takes as long for many values as for one, and most callers go from row to row.
  struct ElementWindow {
    std::int64_t first = 0, count = 0;
    std::int64_t begin = 0;         // of the first row's elements
    std::vector<std::int64_t> end;  // [count]
    std::vector<std::int32_t> position, token, step;
    std::vector<float> confidence;
  };
  /// The datasets of an ElementWindow; unset: there is none.
  struct ElementFields {
    Field end, position;
    std::optional<Field> token, step, confidence;
  };
  static constexpr ElementFields kTransfers{Field::delta_end, Field::delta_position,
                                            Field::delta_token, Field::delta_step,
                                            Field::delta_confidence};
  static constexpr ElementFields kInsertions{Field::insert_end, Field::insert_position,
                                             Field::insert_token, Field::insert_step,
                                             Field::insert_confidence};
  static constexpr ElementFields kDeletions{Field::delete_end, Field::delete_position, {}, {}, {}};
  static constexpr ElementFields kRevocations{
      Field::revoke_end, Field::revoke_position, Field::revoke_token, {}, Field::revoke_confidence};
  ElementWindow read_window(const ElementFields& fields, std::int64_t row) const;
  /// Moves the window to the row, if it is not there, and returns the row's range in it.
  std::pair<std::size_t, std::size_t> look_up(ElementWindow& window, const ElementFields& fields,
                                              std::int64_t row) const;

  CacheWindow window_;
  ElementWindow transfers_, insertions_, deletions_, revocations_;
  TraceCheck check_;
  std::vector<Rows> rows_;
  std::int64_t rows_indexed_ = 0;
};

}  // namespace blockscope
