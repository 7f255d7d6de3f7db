// Which datasets a trace has, and their sizes: trace_schema.h's table applied to one run's
// TraceMeta.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "decode_record/trace_meta.h"
#include "decode_record/trace_schema.h"

namespace blockscope {

const DatasetSpec& spec_of(Field field);

std::string_view to_string(Axis axis);

/// Whether a trace with this meta holds the dataset.
bool exists_in(const DatasetSpec& spec, const TraceMeta& meta);

/// Elements along a fixed axis (not the first one of an extendible dataset).
std::int64_t axis_length(Axis axis, const TraceMeta& meta);

/// Bytes of one element in the file.
std::size_t element_size(const DatasetSpec& spec, const TraceMeta& meta);

/// Shape of the dataset; 0 for the axis that grows.
std::vector<std::int64_t> shape_of(const DatasetSpec& spec, const TraceMeta& meta);

/// Chunk shape of an extendible dataset.
std::vector<std::int64_t> chunk_of(const DatasetSpec& spec, const TraceMeta& meta);

/// Bytes of one row (one index of the first axis) of an extendible dataset.
std::size_t row_bytes(const DatasetSpec& spec, const TraceMeta& meta);

/// Bytes a recorded row and a row that the filters left out add to the file.
struct RowCost {
  std::size_t recorded = 0;
  std::size_t filtered = 0;
};
RowCost row_cost(const TraceMeta& meta);

}  // namespace blockscope
