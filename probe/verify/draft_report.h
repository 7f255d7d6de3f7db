// What `bench --draft` and `verify --draft` say, as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "probe/verify/draft_gain.h"
#include "probe/verify/draft_ties.h"
#include "probe/verify/verify_facts.h"

namespace blockscope {

/// `decoding` says lengths and sampling; `block_length` is of no meaning here.
struct DraftFacts : VerifyFacts {
  std::string draft;
  std::string draft_digest;
  bool drawn = false;  // under a temperature
};

/// A line per block length and task, and for each block length whether the tokens are the target's.
std::string draft_bench_text(const std::vector<DraftMeasured>& measured, const DraftFacts& facts,
                             const std::vector<RunPrompt>& prompts);
/// Format "blockscope-bench-draft" version 1.
std::string draft_bench_json(const std::vector<DraftMeasured>& measured, const DraftFacts& facts,
                             const std::vector<RunPrompt>& prompts);

/// What `verify --draft` found.
struct DraftVerification {
  DraftMeasured measured;
  std::vector<TieFinding> ties;  // of measured.differences
  PairedScores scores;           // the target alone, then with the draft
};
/// By prompt; NaN: not scored.
struct DraftScores {
  std::vector<double> alone, drafted;
};

/// Ends with the verdict in one line, and with what a difference in accuracy is worth where there
/// can be one.
std::string draft_verify_text(const DraftVerification& result, const DraftFacts& facts,
                              const std::vector<RunPrompt>& prompts);
/// Format "blockscope-verify-draft" version 1.
std::string draft_verify_json(const DraftVerification& result, const DraftRuns& runs,
                              const DraftScores& scores, const DraftFacts& facts,
                              const std::vector<RunPrompt>& prompts,
                              const std::vector<int64_t>& stop_ids);

}  // namespace blockscope
