// How many positions a run may generate: one rule, whether a prompt says the number or
// --gen-length.
#pragma once

#include <cstdint>
#include <string>

#include "probe/decode/decoder.h"

namespace blockscope {

/// "expected ..., got ..." where a run with `options` can't generate `gen_length` positions, with
/// any prompt; empty where it can.
std::string gen_length_refusal(int64_t gen_length, const DecodeOptions& options);

/// Throws UsageError naming --gen-length, whose value this is.
void check_gen_length(int64_t gen_length, const DecodeOptions& options);

}  // namespace blockscope
