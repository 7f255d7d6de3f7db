// Reads the values of a round from its line in a file of rounds. Internal to import_rounds.
#pragma once

#include <array>
#include <cstdint>

#include "decode_record/json/json_node.h"
#include "decode_record/write/round_records.h"

namespace blockscope {

/// A token of the vocabulary. The mask token must be in the vocabulary too.
std::int64_t read_known_token(const JsonNode& node, std::int64_t vocab_size);

/// NaN if it is not given.
float read_probability(const JsonNode& line, const char* name);

/// Reads accepted, next and target. Each may follow from the others. `drafted` must be read
/// already.
void read_decision(const JsonNode& line, std::int64_t vocab_size, RoundRecord& round);

/// Reads ranks, probabilities, entropies and times.
void read_columns(const JsonNode& line, std::int64_t vocab_size, RoundRecord& round);

/// Names of what a line says of the selector's candidates.
inline constexpr std::array<const char*, 3> kCandidateColumns = {
    "candidate_token", "candidate_probability", "candidate_score"};

/// Reads what the selector chose from, `candidates` tokens for each drafted one. Each known drafted
/// token must be among them.
void read_candidates(const JsonNode& line, std::int64_t vocab_size, std::int64_t candidates,
                     RoundRecord& round);

}  // namespace blockscope
