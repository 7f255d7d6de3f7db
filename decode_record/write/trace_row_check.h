// Checks what a TraceWriter accepts as a row. Internal to decode_record.
#pragma once

#include <string_view>

#include "decode_record/write/trace_writer.h"

namespace blockscope {

/// Throws UsageError.
[[noreturn]] void refuse_input(std::string_view what);

/// Throws UsageError if the row contradicts the meta: sizes, layer slots, datasets given twice.
void check_row(const TraceRow& row, const TraceMeta& meta);

/// Throw UsageError for steps that no reader would accept (docs/trace_format.md, "Values"): a row's
/// step other than `expected`, and wrong steps of tokens in a resolved delta to `before`.
void check_step(const TraceRow& row, std::int64_t expected);
void check_decided(const SequenceDelta& delta, const Frame& before, const TraceMeta& meta);

/// Adds the transfers of the mask to a resolved delta to `before`. Throws UsageError if the
/// position does not have the revoked token, or if the delta gives it another token. A transfer of
/// the mask that the delta already has stays where it is.
void add_revocations(const std::vector<RevokedToken>& revoked, const Frame& before,
                     SequenceDelta& delta);

}  // namespace blockscope
