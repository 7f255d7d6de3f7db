// The part of a trace that TraceCheck reads at one time. Internal to trace_check*.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "decode_record/read/trace_check.h"

namespace blockscope {

constexpr std::int64_t kElementsAhead = 65536;

/// Queries, keys and values of /cache.
struct CacheFields {
  Field end, start, stop;
};
constexpr std::array<CacheFields, 3> kCacheFields{
    {{Field::query_end, Field::query_start, Field::query_stop},
     {Field::key_end, Field::key_start, Field::key_stop},
     {Field::value_end, Field::value_start, Field::value_stop}}};

/// A CSR column, read forwards and in advance, but only up to the committed elements.
template <typename Value>
class ElementColumn {
 public:
  ElementColumn(const StoredTrace& trace, Field field) : trace_(&trace), field_(field) {}
  void set_limit(std::int64_t limit) { limit_ = limit; }
  std::span<const Value> range(std::int64_t begin, std::int64_t end) {
    if (begin == end) return {};
    const auto buffered = static_cast<std::int64_t>(values_.size());
    if (begin < first_ || end > first_ + buffered) {
      first_ = begin;
      // At least up to `end`: a damaged last end can make the limit too small.
      const std::int64_t ahead = std::max(end, std::min(limit_, begin + kElementsAhead));
      values_ = trace_->column<Value>(field_, begin, ahead - begin);
    }
    return std::span<const Value>(values_).subspan(static_cast<std::size_t>(begin - first_),
                                                   static_cast<std::size_t>(end - begin));
  }

 private:
  const StoredTrace* trace_;
  Field field_;
  std::int64_t limit_ = 0;
  std::int64_t first_ = 0;
  std::vector<Value> values_;
};

struct TraceCheck::Columns {
  std::int64_t first = 0;
  std::size_t count = 0;
  std::vector<std::int64_t> number, sequence, pass, previous, kind, block, block_start, step,
      context_length, changed, since_read, rows_read, masks_left, recorded, pass_time_ns, delta_end, insert_end,
      delete_end, keyframe, prefix_end;
  std::vector<std::int64_t> keyframe_row, keyframe_end;  // from keyframe `first_keyframe` on
  std::int64_t first_keyframe = 0;
  std::int64_t keyframe_start = 0;  // first element of keyframe `first_keyframe`
  // Where the elements of the slab's first row begin.
  std::int64_t delta_start = 0, insert_start = 0, delete_start = 0, prefix_start = 0;
  std::vector<std::int64_t> revoke_end;
  std::int64_t revoke_start = 0;
  /// For queries, keys and values: ends [row, model layer], and where the slab's first range
  /// begins.
  std::array<std::vector<std::int64_t>, 3> cache_end;
  std::array<std::int64_t, 3> cache_start{};

  static std::int64_t begin(const std::vector<std::int64_t>& ends, std::size_t i,
                            std::int64_t start) {
    return i == 0 ? start : ends[i - 1];
  }
};

struct TraceCheck::Elements {
  explicit Elements(const StoredTrace& trace)
      : position(trace, Field::delta_position),
        token(trace, Field::delta_token),
        step(trace, Field::delta_step),
        insert_position(trace, Field::insert_position),
        insert_token(trace, Field::insert_token),
        insert_step(trace, Field::insert_step),
        delete_position(trace, Field::delete_position),
        keyframe_token(trace, Field::keyframe_token),
        keyframe_step(trace, Field::keyframe_step),
        prefix_sequence(trace, Field::prefix_sequence),
        prefix_position(trace, Field::prefix_position),
        confidence(trace, Field::delta_confidence),
        insert_confidence(trace, Field::insert_confidence),
        keyframe_confidence(trace, Field::keyframe_confidence),
        revoke_position(trace, Field::revoke_position),
        revoke_token(trace, Field::revoke_token),
        revoke_confidence(trace, Field::revoke_confidence),
        cache_start{
            {{trace, Field::query_start}, {trace, Field::key_start}, {trace, Field::value_start}}},
        cache_stop{
            {{trace, Field::query_stop}, {trace, Field::key_stop}, {trace, Field::value_stop}}} {}
  ElementColumn<std::int32_t> position, token, step, insert_position, insert_token, insert_step,
      delete_position, keyframe_token, keyframe_step, prefix_sequence, prefix_position;
  ElementColumn<float> confidence, insert_confidence, keyframe_confidence;
  ElementColumn<std::int32_t> revoke_position, revoke_token;
  ElementColumn<float> revoke_confidence;
  std::array<ElementColumn<std::int32_t>, 3> cache_start, cache_stop;
};

}  // namespace blockscope
