// What a TraceWriter accepts as a row. Internal to decode_record.
#pragma once

#include <string_view>

#include "decode_record/trace_writer.h"

namespace blockscope {

/// Throws UsageError.
[[noreturn]] void refuse_input(std::string_view what);

/// Throws UsageError when the row contradicts the meta: sizes, layer slots, datasets given twice.
void check_row(const TraceRow& row, const TraceMeta& meta);

}  // namespace blockscope
