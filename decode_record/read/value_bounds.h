// The ranges of integers that are positions, tokens or marks. Internal to decode_record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "decode_record/read/located_values.h"
#include "decode_record/schema/trace_meta.h"
#include "decode_record/schema/trace_schema.h"

namespace blockscope {

/// "3", "0 to 3", "0 or more".
std::string interval_text(std::int64_t least, std::int64_t most);

/// The range of the values of an integer dataset with a row axis; nullopt: they are not indices.
/// `positions` as TraceCheck::positions().
std::optional<ValueBounds> bounds_of(Field field, const TraceMeta& meta, std::int64_t positions);

/// Throws CorruptTrace unless every value of rows [first, first + rows) of `dataset` is within its
/// bounds. `element_bytes`: 1 or 4.
void check_values(std::string_view dataset, std::size_t element_bytes, const ValueBounds& bounds,
                  std::int64_t first, std::size_t rows, std::span<const std::byte> values);

}  // namespace blockscope
