// What a draft gained, computed from runs with and without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "probe/verify/agreement.h"
#include "probe/verify/draft_runs.h"

namespace blockscope {

/// One block length compared with the target alone, over some prompts. Spreads are over
/// repetitions; repetition i with the draft is compared with repetition i without it. NaN if the
/// divisor is 0. Tokens are those of the answers, up to and including the first stop token. Tokens
/// per second count those decided after the prefill: a draft's prefill decides the first token.
/// Tokens accepted after gen_length are left out of everything.
struct DraftGain {
  int64_t prompts = 0;
  int64_t alone_tokens = 0;
  int64_t drafted_tokens = 0;
  int64_t rounds = 0;
  double acceptance_length = 0.0;   // mean over rounds of accepted drafts + 1
  std::vector<double> accepted_at;  // by position 1, 2, ...: share of rounds that accepted it
  double passes_per_token = 0.0;    // passes of the target after the prefill; alone 1
  Spread alone_speed;               // tokens a second
  Spread drafted_speed;
  Spread speedup;         // drafted_speed over alone_speed
  Spread answer_speedup;  // seconds of whole answers with prefill, alone over drafted
  Spread alone_seconds;   // of these answers
  Spread drafted_seconds;
  Spread alone_prefill;  // seconds
  Spread drafted_prefill;
  Spread draft_share;      // of the time after the prefill
  Spread alone_ms;         // of a pass of the target over one token
  Spread verification_ms;  // of a pass of the target over a block
  Spread draft_ms;         // of a pass of the draft
};

/// `prompts`: which of them count.
DraftGain gain_of(const DraftSide& alone, const DraftSide& drafted,
                  const std::vector<size_t>& prompts, const std::vector<int64_t>& stop_ids);

/// The first position at which an answer differs from the target's own answer.
struct TokenDifference {
  size_t prompt = 0;
  int64_t position = 0;  // after the prompt, from 0
  int64_t alone_token = 0;
  int64_t drafted_token = 0;
};
/// For each prompt the first difference, if any, up to the first stop token.
std::vector<TokenDifference> first_differences(const DraftSide& alone, const DraftSide& drafted,
                                               const std::vector<int64_t>& stop_ids);

/// One block length compared with the target alone.
struct DraftMeasured {
  int64_t block_length = 0;
  DraftGain all;                                         // every prompt
  std::vector<std::pair<std::string, DraftGain>> tasks;  // by name, if there are several
  /// Only for greedy runs. Sampled runs have the same distribution, but not the same tokens.
  std::optional<TokenAgreement> agreement;
  std::vector<TokenDifference> differences;  // only for greedy runs
};
std::vector<DraftMeasured> measured_of(const DraftRuns& runs, const std::vector<RunPrompt>& prompts,
                                       const DecodeOptions& options);

}  // namespace blockscope
