// What a draft gained, from runs with and without it: numbers alone, no model.
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

/// Of some prompts, one block length beside the target alone. Spreads are over repetitions, each
/// compared with the one beside it; NaN where there is nothing to divide by. Tokens are those of
/// the answers, up to and including the first stop token; of tokens a second those that passes
/// behind the prefill decided: a draft's prefill decides the first one. What is accepted behind
/// gen_length counts nowhere.
struct DraftGain {
  int64_t prompts = 0;
  int64_t alone_tokens = 0;
  int64_t drafted_tokens = 0;
  int64_t rounds = 0;
  double acceptance_length = 0.0;   // mean over rounds of accepted drafts + 1
  std::vector<double> accepted_at;  // by position 1, 2, ...: share of rounds accepted there
  double passes_per_token = 0.0;    // passes of the target behind the prefill; alone 1
  Spread alone_speed;               // tokens a second
  Spread drafted_speed;
  Spread speedup;         // drafted_speed over alone_speed
  Spread answer_speedup;  // the whole answers with their prefill, alone over drafted
  Spread alone_seconds;   // of these answers
  Spread drafted_seconds;
  Spread alone_prefill;  // seconds
  Spread drafted_prefill;
  Spread draft_share;      // of the time behind the prefill
  Spread alone_ms;         // of a pass of the target by itself
  Spread verification_ms;  // of a pass of the target over a block
  Spread draft_ms;         // of a pass of the draft
};

/// `prompts`: which of them count.
DraftGain gain_of(const DraftSide& alone, const DraftSide& drafted,
                  const std::vector<size_t>& prompts, const std::vector<int64_t>& stop_ids);

/// Where an answer first differs from the target's own.
struct TokenDifference {
  size_t prompt = 0;
  int64_t position = 0;  // behind the prompt, from 0
  int64_t alone_token = 0;
  int64_t drafted_token = 0;
};
/// One of each prompt that has one, looked for up to the first stop token.
std::vector<TokenDifference> first_differences(const DraftSide& alone, const DraftSide& drafted,
                                               const std::vector<int64_t>& stop_ids);

/// One block length beside the target alone.
struct DraftMeasured {
  int64_t block_length = 0;
  DraftGain all;                                         // every prompt
  std::vector<std::pair<std::string, DraftGain>> tasks;  // by name, where there are several
  /// Of greedy runs. Drawn ones have the same distribution, and need not have the same tokens.
  std::optional<TokenAgreement> agreement;
  std::vector<TokenDifference> differences;  // likewise
};
std::vector<DraftMeasured> measured_of(const DraftRuns& runs, const std::vector<RunPrompt>& prompts,
                                       const DecodeOptions& options);

}  // namespace blockscope
