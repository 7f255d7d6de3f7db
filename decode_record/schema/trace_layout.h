// Which datasets a trace has, and their sizes: the table of trace_schema.h for one run's TraceMeta.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "decode_record/schema/trace_meta.h"
#include "decode_record/schema/trace_schema.h"

namespace blockscope {

const DatasetSpec& spec_of(Field field);

/// The datasets that say where the name, answer, metric and text of a sequence begin in
/// /sequences/bytes, and their lengths.
inline constexpr std::pair<Field, Field> kSequenceTexts[] = {
    {Field::sequence_name_start, Field::sequence_name_length},
    {Field::sequence_answer_start, Field::sequence_answer_length},
    {Field::sequence_metric_start, Field::sequence_metric_length},
    {Field::sequence_text_start, Field::sequence_text_length}};

std::string_view to_string(Axis axis);

/// Whether a trace with this meta holds the dataset.
bool exists_in(const DatasetSpec& spec, const TraceMeta& meta);

/// Whether a merge shows this dataset from its inputs instead of copying it: a large array without
/// indices into other datasets.
bool is_virtual(const DatasetSpec& spec);

/// Number of elements along a fixed axis (not the first axis of an extendible dataset).
std::int64_t axis_length(Axis axis, const TraceMeta& meta);

/// Bytes of one element in the file.
std::size_t element_size(const DatasetSpec& spec, const TraceMeta& meta);

/// Shape of the dataset; 0 for the axis that grows.
std::vector<std::int64_t> shape_of(const DatasetSpec& spec, const TraceMeta& meta);

/// Chunk shape of an extendible dataset.
std::vector<std::int64_t> chunk_of(const DatasetSpec& spec, const TraceMeta& meta);

/// Bytes of one row (one index of the first axis) of an extendible dataset.
std::size_t row_bytes(const DatasetSpec& spec, const TraceMeta& meta);

/// What a recorded layer has of its values in a row, [.., channel] or [kv_head, ..]. The rest is
/// padding (ragged layers).
struct LayerPart {
  std::size_t rows = 0;  ///< of padded_bytes each, and none after them
  std::size_t padded_bytes = 0;
  std::size_t own_bytes = 0;  ///< the first ones of a row
  std::size_t bytes() const { return rows * own_bytes; }
};
/// `slot`: index into meta.layers. A dataset without a layer axis has no padding.
LayerPart layer_part(const DatasetSpec& spec, const TraceMeta& meta, std::size_t slot);
/// Moves a layer's own values to the front: the first own.bytes() of them.
void drop_padding(std::byte* values, const LayerPart& own);

/// The steps that a position of a frame may have with this token and confidence, where `most` is
/// the largest of any. Only a mask has none, and in a canvas without masks what has no confidence.
struct StepLimits {
  std::int64_t least, most;
};
StepLimits step_limits(const TraceMeta& meta, std::int64_t token, float confidence,
                       std::int64_t most);

/// The final lengths of a trace's growing axes, by Axis, and how many of its rows have arrays (the
/// recorder's filters leave out the others).
struct TraceExtent {
  std::array<std::int64_t, static_cast<std::size_t>(Axis::count)> lengths{};
  std::int64_t recorded_rows = 0;
  std::int64_t map_rows = 0;  ///< those with /map
  std::int64_t& length(Axis axis) { return lengths[static_cast<std::size_t>(axis)]; }
};
/// Size of the file: the values in whole chunks, and an upper bound of what HDF5 adds.
std::int64_t file_bytes(const TraceMeta& meta, const TraceExtent& extent);
/// Bytes of one row with all its arrays.
std::int64_t recorded_row_bytes(const TraceMeta& meta);

}  // namespace blockscope
