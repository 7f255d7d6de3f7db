// The formats of `blockscope export` that other tools read, a sequence at a time, and what they
// share. docs/interchange.md has their fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// The value, or null where JSON has no word for it (NaN, an infinity).
nlohmann::ordered_json json_number(float value);
nlohmann::ordered_json json_numbers(const std::vector<float>& values);

/// What every format of ours says of a sequence: its number, name, prompt hash, how it ended, text.
nlohmann::ordered_json sequence_head(const TraceReader& reader, std::int64_t index);

/// d2Cache's DecodeRecord of a sequence, in its own form: decoded_tokens has an element for every
/// position, -100 where the step's prediction is not known.
nlohmann::ordered_json frames_json(const TraceReader& reader, std::int64_t index);

/// TraDo's view: for each token of the response the step, from 1, that decided it; 0: none did.
nlohmann::ordered_json step_map_json(const TraceReader& reader, std::int64_t index);

/// KLASS's array of steps. Throws TraceError for a sequence that its form has no words for: tokens
/// taken back, inserted or deleted, or decided outside of a denoising step, or no mask token.
nlohmann::ordered_json klass_json(const TraceReader& reader, std::int64_t index);

/// The stop tokens of the run, where the trace says them.
std::set<std::int64_t> stop_ids(const TraceReader& reader);

/// Rounds of a draft as JSON lines, which parse_rounds() reads: a header, then each sequence with
/// its rounds. Throws UsageError for a trace without a draft, CorruptTrace for impossible rounds.
void write_rounds_lines(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
                        std::ostream& out);

}  // namespace blockscope
