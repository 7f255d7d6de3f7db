// The reports of `bench --draft` and `verify --draft`, as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "probe/verify/draft_gain.h"
#include "probe/verify/draft_ties.h"
#include "probe/verify/verify_facts.h"

namespace blockscope {

/// `decoding` holds lengths and sampling; `block_length` is unused.
struct DraftFacts : VerifyFacts {
  std::string draft;
  std::string draft_digest;
  bool drawn = false;  // tokens are sampled, with a temperature above 0
};

/// A line per block length and task. Also says for each block length if the tokens are the
/// target's.
std::string draft_bench_text(const std::vector<DraftMeasured>& measured, const DraftFacts& facts,
                             const std::vector<RunPrompt>& prompts);
/// Format "blockscope-bench-draft" version 1.
std::string draft_bench_json(const std::vector<DraftMeasured>& measured, const DraftFacts& facts,
                             const std::vector<RunPrompt>& prompts);

/// The result of `verify --draft`.
struct DraftVerification {
  DraftMeasured measured;
  std::vector<TieFinding> ties;  // of measured.differences
  PairedScores scores;           // the target alone, then with the draft
};
/// By prompt; NaN: not scored.
struct DraftScores {
  std::vector<double> alone, drafted;
};

/// Ends with the verdict in one line. If accuracy can differ, a last line says how certain a
/// difference is.
std::string draft_verify_text(const DraftVerification& result, const DraftFacts& facts,
                              const std::vector<RunPrompt>& prompts);
/// Format "blockscope-verify-draft" version 1.
std::string draft_verify_json(const DraftVerification& result, const DraftRuns& runs,
                              const DraftScores& scores, const DraftFacts& facts,
                              const std::vector<RunPrompt>& prompts,
                              const std::vector<int64_t>& stop_ids);

}  // namespace blockscope
