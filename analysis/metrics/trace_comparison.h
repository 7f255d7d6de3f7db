// Two traces of the same prompts beside each other: which sequences belong together, what keeps
// them from being compared cell by cell, where their tokens part, and B - A of any result.
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
  bool same_prompt = true;      ///< false: only the names agree, the prompt's tokens don't
};

struct SequenceMatches {
  std::vector<SequenceMatch> pairs;          ///< ascending by a
  std::vector<std::int64_t> only_a, only_b;  ///< without a partner, ascending
};

/// Pairs sequences by prompt hash, the n-th of a prompt with the n-th; then, among the rest, by
/// name when exactly one of each side has it. Sequences marked `aborted` are left out.
SequenceMatches match_sequences(const TraceReader& a, const TraceReader& b);

/// What differs between the models and what was recorded of them, one sentence each, such as
/// "layers of the model: 6 in A, 4 in B". Empty: every cell of one has its counterpart in the
/// other.
std::vector<std::string> shape_differences(const TraceMeta& a, const TraceMeta& b);

/// Whether layer l, head h of one is layer l, head h of the other: the models have as many layers,
/// heads and KV heads.
bool same_architecture(const TraceMeta& a, const TraceMeta& b);

/// b - a at the coordinates that both have (matched by index, or by label where an axis has
/// labels), in a's order. A cell that either has no value for is NaN; terms: the smaller number of
/// both. Throws UsageError when the arrays' axes or units differ.
ResultArray difference(const ResultArray& b, const ResultArray& a);

/// What a position of the generated region holds in the two runs after a denoising step.
enum class TokenState : std::uint8_t { masked, only_a, only_b, equal, different };

struct TokenComparison {
  std::int64_t positions = 0;             ///< of the generated region; of the longer one
  std::int64_t steps_a = 0, steps_b = 0;  ///< denoising steps of each
  /// [max(steps_a, steps_b), positions] after each step; the run with fewer steps keeps its end.
  std::vector<TokenState> states;
  std::vector<std::int64_t> tokens_a, tokens_b;  ///< [positions] at the end; -1: mask, no position
  std::int64_t first_step = -1;      ///< from 0, the first after which the two differ; -1: none
  std::int64_t first_position = -1;  ///< lowest position with different tokens at the end; -1: none
  std::int64_t decided_in_both = 0;  ///< positions at the end
  std::int64_t equal = 0;            ///< of these, with the same token
  /// equal / decided_in_both; NaN: nothing is decided in both.
  double share_equal() const;
  TokenState state(std::int64_t step, std::int64_t position) const;
};

/// Compares two sequences step by step. Tokens are compared by id when both have one vocabulary,
/// else by their pieces. `progress` is called with steps done and in all; false stops with
/// InterruptedError. Throws UsageError when the vocabularies differ and a trace has no pieces.
TokenComparison compare_tokens(
    const TraceReader& a, std::int64_t sequence_a, const TraceReader& b, std::int64_t sequence_b,
    const std::function<bool(std::int64_t done, std::int64_t total)>& progress = {});

}  // namespace blockscope
