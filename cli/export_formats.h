// The formats of `blockscope export` that other tools read, one sequence at a time, and the parts
// that they share. docs/interchange.md describes their fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// The value, or null for what JSON can't hold (NaN, an infinity).
nlohmann::ordered_json json_number(float value);
nlohmann::ordered_json json_numbers(const std::vector<float>& values);

/// The members that our own formats share: number, name, prompt hash, finish reason, text.
nlohmann::ordered_json sequence_head(const TraceReader& reader, std::int64_t index);

/// d2Cache's DecodeRecord of a sequence, in d2Cache's own form: decoded_tokens has an element for
/// every position, -100 where the step's prediction is not known.
nlohmann::ordered_json frames_json(const TraceReader& reader, std::int64_t index);

/// TraDo's step map: for each token of the response, the step (from 1) that decided it; 0: none.
nlohmann::ordered_json step_map_json(const TraceReader& reader, std::int64_t index);

/// KLASS's array of steps. Throws TraceError for a sequence that this form can't express: tokens
/// taken back, inserted, deleted or decided outside of a denoising step, or no mask token.
nlohmann::ordered_json klass_json(const TraceReader& reader, std::int64_t index);

/// Writes the rounds of a draft as JSON lines: a header, then each sequence with its rounds.
/// parse_rounds() reads them. Throws UsageError for a trace without a draft, CorruptTrace for
/// impossible rounds.
void write_rounds_lines(const TraceReader& reader, const std::vector<std::int64_t>& sequences,
                        std::ostream& out);

}  // namespace blockscope
