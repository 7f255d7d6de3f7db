// The state of a TraceReader, shared by the files that implement it. Internal to decode_record.
#pragma once

#include <array>
#include <string>
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
  std::string text(Field start, Field length, std::int64_t sequence) const;
  /// The range [begin, end) of a row in the elements that `end_field` counts.
  std::pair<std::int64_t, std::int64_t> range(Field end_field, std::int64_t row,
                                              Field elements) const;
  FrameDelta delta(std::int64_t row) const;
  Frame keyframe(std::int64_t index, std::int64_t sequence) const;
  Frame frame_before(std::int64_t row) const;
  std::vector<LayerRanges> cache(std::int64_t row);
  std::vector<RevokedToken> revoked(std::int64_t row) const;
  template <typename Value>
  Value value(Field field, std::int64_t row) const {
    return raw.column<Value>(field, row, 1).at(0);
  }
  [[noreturn]] void corrupt(std::string_view what) const;

  std::string requested;  // the path the user gave
  StoredTrace raw;
  TraceInfo info;

 private:
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

  CacheWindow window_;
  TraceCheck check_;
  std::vector<Rows> rows_;
  std::int64_t rows_indexed_ = 0;
};

}  // namespace blockscope
