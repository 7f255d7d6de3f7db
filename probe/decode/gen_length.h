// How many positions a run may generate. The rule is the same for a prompt's own gen_length and for
// --gen-length.
#pragma once

#include <cstdint>
#include <string>

#include "probe/decode/decoder.h"

namespace blockscope {

/// Why a run with `options` can't generate `gen_length` positions with any prompt, as "expected
/// ..., got ..."; empty if it can.
std::string gen_length_refusal(int64_t gen_length, const DecodeOptions& options);

/// Checks the value of --gen-length. Throws a UsageError that names the option.
void check_gen_length(int64_t gen_length, const DecodeOptions& options);

}  // namespace blockscope
