// What one line of a file of rounds says of its round (import_rounds.h). Internal to that reader.
#pragma once

#include <cstdint>

#include "decode_record/json/json_node.h"
#include "decode_record/write/round_records.h"

namespace blockscope {

/// A token of the vocabulary; the mask too only where it is one of these.
std::int64_t read_known_token(const JsonNode& node, std::int64_t vocab_size);

/// NaN where it is not given.
float read_probability(const JsonNode& line, const char* name);

/// accepted, next and target, each of which may follow from the others; `drafted` is there already.
void read_decision(const JsonNode& line, std::int64_t vocab_size, RoundRecord& round);

/// Ranks, probabilities, entropies and times.
void read_columns(const JsonNode& line, std::int64_t vocab_size, RoundRecord& round);

}  // namespace blockscope
