// See trace_check.h: what a pass computed, and which tokens it took back. Both are checked before
// the row's delta is applied to the frame.
#include <fmt/format.h>

#include <algorithm>

#include "decode_record/read/trace_check_columns.h"

namespace blockscope {

/// A token that is taken back must be at its position, and the same row must mask the position.
void TraceCheck::check_revocations(const Columns& columns, std::size_t i, Sequence& sequence,
                                   Elements& elements) {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const std::int64_t mask = trace_->meta().mask_token_id;
  // The transfers, which check_delta() checks later.
  const std::int64_t first = Columns::begin(columns.delta_end, i, columns.delta_start);
  check(Field::delta_end, "row", row, columns.delta_end[i], first,
        std::min(trace_->extent(Field::delta_position), first + sequence.length));
  const auto changed = elements.position.range(first, columns.delta_end[i]);
  const auto tokens = elements.token.range(first, columns.delta_end[i]);

  const std::int64_t begin = Columns::begin(columns.revoke_end, i, columns.revoke_start);
  const std::int64_t end = columns.revoke_end[i];
  check(Field::revoke_end, "row", row, end, begin,
        std::min(trace_->extent(Field::revoke_position), begin + std::ssize(changed)));
  const auto positions = elements.revoke_position.range(begin, end);
  const auto revoked = elements.revoke_token.range(begin, end);
  check_confidence(Field::revoke_confidence, row, elements.revoke_confidence.range(begin, end));
  check_all(Field::revoke_position, row, positions, 0, sequence.length - 1);
  check_distinct(Field::revoke_position, row, positions);
  for (std::size_t k = 0; k < positions.size(); ++k) {
    const auto stood = sequence.tokens.find(positions[k]);
    if (stood == sequence.tokens.end()) {
      refuse(Field::revoke_position, fmt::format("row {}", row), "a position that holds a token",
             fmt::format("{}, a mask", positions[k]));
    }
    check(Field::revoke_token, "row", row, revoked[k], stood->second, stood->second);
    const auto at = std::ranges::find(changed, positions[k]);
    const bool masked =
        at != changed.end() && tokens[static_cast<std::size_t>(at - changed.begin())] == mask;
    if (masked) continue;
    refuse(Field::revoke_position, fmt::format("row {}", row),
           "a position to which the row transfers the mask", std::to_string(positions[k]));
  }
  for (std::size_t k = 0; k < changed.size(); ++k) {
    if (tokens[k] == mask) {
      sequence.tokens.erase(changed[k]);
    } else {
      sequence.tokens[changed[k]] = tokens[k];
    }
  }
  follow_moves(columns, i, sequence, elements);
}

/// Insertions and deletions move the tokens after them.
void TraceCheck::follow_moves(const Columns& columns, std::size_t i, Sequence& sequence,
                              Elements& elements) const {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const auto range_of = [&](const std::vector<std::int64_t>& ends, std::int64_t start, Field end,
                            Field of) {
    const std::int64_t begin = Columns::begin(ends, i, start);
    check(end, "row", row, ends[i], begin, trace_->extent(of));
    return std::pair{begin, ends[i]};
  };
  const auto inserts =
      range_of(columns.insert_end, columns.insert_start, Field::insert_end, Field::insert_position);
  const auto deletes =
      range_of(columns.delete_end, columns.delete_start, Field::delete_end, Field::delete_position);
  const auto inserted = elements.insert_position.range(inserts.first, inserts.second);
  const auto tokens = elements.insert_token.range(inserts.first, inserts.second);
  const auto deleted = elements.delete_position.range(deletes.first, deletes.second);
  if (inserted.empty() && deleted.empty()) return;
  std::vector<std::int32_t> places(inserted.begin(), inserted.end());
  std::ranges::sort(places);
  std::map<std::int64_t, std::int64_t> moved;
  for (const auto& [position, token] : sequence.tokens) {
    moved[position + (std::ranges::upper_bound(places, position) - places.begin())] = token;
  }
  std::vector<std::size_t> order(inserted.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::ranges::stable_sort(order, {}, [&](std::size_t k) { return inserted[k]; });
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (tokens[order[k]] == trace_->meta().mask_token_id) continue;
    moved[inserted[order[k]] + static_cast<std::int64_t>(k)] = tokens[order[k]];
  }
  std::vector<std::int32_t> gone(deleted.begin(), deleted.end());
  std::ranges::sort(gone);
  sequence.tokens.clear();
  for (const auto& [position, token] : moved) {
    if (std::ranges::binary_search(gone, position)) continue;
    sequence.tokens[position - (std::ranges::lower_bound(gone, position) - gone.begin())] = token;
  }
}

/// Ranges of a layer must rise, be inside the sequence, and have gaps between them.
void TraceCheck::check_cache(const Columns& columns, std::size_t i, const Sequence& sequence,
                             Elements& elements) const {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const auto layers = static_cast<std::size_t>(trace_->meta().num_layers);
  const std::int64_t positions = sequence.prompt_length + sequence.length;
  for (std::size_t k = 0; k < kCacheFields.size(); ++k) {
    const CacheFields& fields = kCacheFields[k];
    for (std::size_t at = i * layers; at < (i + 1) * layers; ++at) {
      const std::int64_t begin = Columns::begin(columns.cache_end[k], at, columns.cache_start[k]);
      const std::int64_t end = columns.cache_end[k][at];
      check(fields.end, "row", row, end, begin,
            std::min(trace_->extent(fields.start), begin + (positions + 1) / 2));
      const auto starts = elements.cache_start[k].range(begin, end);
      const auto stops = elements.cache_stop[k].range(begin, end);
      std::int64_t free = 0;
      for (std::size_t n = 0; n < starts.size(); ++n) {
        check(fields.start, "row", row, starts[n], free, positions - 1);
        check(fields.stop, "row", row, stops[n], starts[n] + std::int64_t{1}, positions);
        free = stops[n] + std::int64_t{1};
      }
    }
  }
}

}  // namespace blockscope
