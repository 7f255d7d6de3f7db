// Compares two traces of the same prompts: which sequences belong together, why cells may not be
// comparable, where the tokens differ, and B - A of any result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "analysis/results/metric_result.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

struct SequenceMatch {
  std::int64_t a = -1, b = -1;  ///< indices of the sequences in their traces
  bool same_prompt = true;      ///< false: only the names agree, not the prompt's tokens
};

struct SequenceMatches {
  std::vector<SequenceMatch> pairs;          ///< ascending by a
  std::vector<std::int64_t> only_a, only_b;  ///< without a partner, ascending
};

/// Pairs sequences by prompt hash, the n-th of a prompt with the n-th one. Pairs the others by
/// name, if exactly one sequence of each side has it. Sequences marked `aborted` are left out.
SequenceMatches match_sequences(const TraceReader& a, const TraceReader& b);

/// Differences between the models and between their recorded parts, one sentence each, such as
/// "layers of the model: 6 in A, 4 in B". Empty: every cell of one trace has a counterpart in the
/// other.
std::vector<std::string> shape_differences(const TraceMeta& a, const TraceMeta& b);

/// Whether layer l, head h means the same in both: the models have the same numbers of layers,
/// heads and KV heads.
bool same_architecture(const TraceMeta& a, const TraceMeta& b);

/// b - a at the coordinates that both have, in a's order. Coordinates match by index, or by label
/// if an axis has labels. A cell without a value on one side is NaN. Terms are the smaller number
/// of both. Throws UsageError if the arrays' axes or units differ.
ResultArray difference(const ResultArray& b, const ResultArray& a);

/// The state of a generated position in the two runs after a denoising step.
enum class TokenState : std::uint8_t { masked, only_a, only_b, equal, different };

struct TokenComparison {
  std::int64_t positions = 0;             ///< of the longer generated region
  std::int64_t steps_a = 0, steps_b = 0;  ///< denoising steps of each
  /// [max(steps_a, steps_b), positions] after each step. The shorter run keeps its final state.
  std::vector<TokenState> states;
  std::vector<std::int64_t> tokens_a, tokens_b;  ///< [positions] at the end; -1: mask, no position
  std::int64_t first_step = -1;      ///< first step, from 0, after which the two differ; -1: none
  std::int64_t first_position = -1;  ///< lowest position with different tokens at the end; -1: none
  std::int64_t decided_in_both = 0;  ///< positions decided in both at the end
  std::int64_t equal = 0;            ///< of these, those with the same token
  /// equal / decided_in_both; NaN if no position is decided in both.
  double share_equal() const;
  TokenState state(std::int64_t step, std::int64_t position) const;
};

/// Compares two sequences step by step. Tokens are compared by id if the vocabularies are equal,
/// else by their pieces. `progress` gets the steps done and all steps; returning false stops with
/// InterruptedError. Throws UsageError if the vocabularies differ and a trace has no pieces.
TokenComparison compare_tokens(
    const TraceReader& a, std::int64_t sequence_a, const TraceReader& b, std::int64_t sequence_b,
    const std::function<bool(std::int64_t done, std::int64_t total)>& progress = {});

}  // namespace blockscope
