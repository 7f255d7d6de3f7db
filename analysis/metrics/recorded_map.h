// The weights that --record-maps wrote (/map), as attention maps. attention_map() reads them where
// a trace has no keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/metrics/attention_map.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// Whether the trace has recorded weights, and no keys to compute others from.
bool has_maps_alone(const TraceReader& trace);

/// The positions of the keys outside the row's block that a recorded layer sees, [N].
std::vector<std::int32_t> external_positions(const TraceReader& trace, std::int64_t row,
                                             std::size_t layer);

/// Whether the row has recorded weights of some layer and head. False where --record-maps left its
/// step out.
bool has_recorded_map(const TraceReader& trace, std::int64_t row);

/// As attention_map(). Throws TraceError for a layer, head or step whose weights were not recorded,
/// CorruptTrace for weights that can't be any.
AttentionMap recorded_map(const TraceReader& trace, std::int64_t row, std::size_t layer,
                          std::size_t head, const KeysOutside& outside);

}  // namespace blockscope
