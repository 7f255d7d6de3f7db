// Shared by `bench --draft` and `verify --draft`: loads a target, its draft and the prompts, and
// decodes with and without the draft.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/run/environment.h"
#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"
#include "probe/verify/draft_report.h"

namespace blockscope {

struct DraftComparisonFlags {
  const CLI::App& command;  // knows which options were given
  const ModelFlags& model;
  const std::string& draft;
  const PromptFlags& prompts;
  const DecodingFlags& decoding;
  std::vector<int64_t> block_lengths;  // --block-lengths; empty: --block-length, or the draft's
  int64_t repeats = 3;
  bool quiet = false;
};

struct DraftComparison {
  LoadedModel target;
  LoadedDraft draft;
  DecodeOptions alone;
  std::optional<Tokenizer> tokenizer;
  std::vector<RunPrompt> prompts;
  DraftRuns runs;
  DraftFacts facts;
};

/// Loads and decodes. Throws what loading throws, UsageError for options that don't fit, and
/// InterruptedError after a signal (the caller holds the InterruptGuard).
DraftComparison compare_with_draft(const DraftComparisonFlags& flags,
                                   const Environment& environment);

}  // namespace blockscope
