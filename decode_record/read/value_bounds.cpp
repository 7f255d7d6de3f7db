#include "decode_record/read/value_bounds.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "decode_record/base/error.h"

namespace blockscope {

std::string interval_text(std::int64_t least, std::int64_t most) {
  if (least == most) return fmt::format("{}", least);
  if (most == std::numeric_limits<std::int64_t>::max()) return fmt::format("{} or more", least);
  return fmt::format("{} to {}", least, most);
}

std::optional<ValueBounds> bounds_of(Field field, const TraceMeta& meta, std::int64_t positions) {
  switch (field) {
    case Field::prediction_token:
      return ValueBounds{-1, meta.vocab_size - 1};
    case Field::attention_selected:
    case Field::set_topk:
    case Field::set_topk_token:
      return ValueBounds{-1, positions - 1};
    case Field::set_union_size:
      return ValueBounds{-1, positions};
    case Field::router_expert:
      return ValueBounds{-1, meta.num_experts - 1};
    case Field::draft_accepted:
      return ValueBounds{-1, meta.block_length - 1};
    case Field::draft_token:
    case Field::draft_target_token:
    case Field::target_rank_under_draft:
    case Field::drafted_rank_under_target:
    case Field::candidate_token:
      return ValueBounds{-1, meta.vocab_size - 1};
    case Field::candidate_chosen:
    case Field::candidate_target:
      return ValueBounds{-1, meta.draft_candidates - 1};
    case Field::attention_reused:
    case Field::attention_intervened:
      return ValueBounds{0, 1};
    default:
      return std::nullopt;
  }
}

void check_values(std::string_view dataset, std::size_t element_bytes, const ValueBounds& bounds,
                  std::int64_t first, std::size_t rows, std::span<const std::byte> values) {
  const std::size_t count = values.size() / element_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t value = 0;
    if (element_bytes == 1) {
      value = std::to_integer<std::int32_t>(values[i]);
    } else {
      std::memcpy(&value, &values[4 * i], 4);
    }
    if (value >= bounds.least && value <= bounds.most) continue;
    const auto row = first + static_cast<std::int64_t>(i / (count / rows));
    throw CorruptTrace(fmt::format("{}: row {}: expected {}, got {}. HINT: the file is damaged.",
                                   dataset, row, interval_text(bounds.least, bounds.most), value));
  }
}

}  // namespace blockscope
