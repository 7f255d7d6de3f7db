// What a TraceWriter accepts as a row. Internal to decode_record.
#pragma once

#include <string_view>

#include "decode_record/write/trace_writer.h"

namespace blockscope {

/// Throws UsageError.
[[noreturn]] void refuse_input(std::string_view what);

/// Throws UsageError when the row contradicts the meta: sizes, layer slots, datasets given twice.
void check_row(const TraceRow& row, const TraceMeta& meta);

/// Throw UsageError for steps that no reader would take (docs/trace_format.md, "Values"): of a row
/// whose sequence calls for `expected`, and of the tokens of a resolved delta to `before`.
void check_step(const TraceRow& row, std::int64_t expected);
void check_decided(const SequenceDelta& delta, const Frame& before);

/// Adds the transfers of the mask to a resolved delta to `before`. Throws UsageError for a token
/// that does not stand there, or a position to which the delta gives another token. A transfer of
/// the mask that the delta has already stays where it is.
void add_revocations(const std::vector<RevokedToken>& revoked, const Frame& before,
                     SequenceDelta& delta);

}  // namespace blockscope
