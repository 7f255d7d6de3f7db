// Decodes the same prompts with a target alone and with its DFlash draft, by turns, and keeps the
// time of every pass. Nothing is recorded, so observation costs neither side any time: the times
// come from the passes themselves (PassResult). Shared by `bench --draft` and `verify --draft`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "probe/draft/draft_model.h"
#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"

namespace blockscope {

struct DraftRunsInput {
  const LoadedModel& target;
  const DraftModel& draft;
  DecodeOptions alone;  // token by token; both sides use its sampling, stop tokens, prefill chunk
  std::vector<int64_t> block_lengths;  // of rounds; each one is a side of its own
  const std::vector<RunPrompt>& prompts;
  int64_t batch_size = 1;
  int64_t repeats = 3;
};

/// Seconds of a sequence's passes. The time of a pass over several sequences is divided evenly.
struct PassSeconds {
  double prefill = 0.0;
  double draft = 0.0;
  double target = 0.0;  // after the prefill

  double decoding() const { return draft + target; }
  double total() const { return prefill + draft + target; }
  PassSeconds& operator+=(const PassSeconds& other);
};

/// One prompt decoded by one side. All but the times comes from the first repetition.
struct PromptRun {
  std::vector<int64_t> generated;    // DecodeOutcome::generated
  int64_t prefill_tokens = 0;        // decided by the prefill: with a draft, the first token
  double draft_passes = 0.0;         // shares of passes, divided like their seconds
  double target_passes = 0.0;        // after the prefill
  int64_t rounds = 0;                // passes of the target after the prefill with this prompt
  std::vector<int64_t> accepted;     // by round: drafted tokens before gen_length; alone: none
  std::vector<PassSeconds> seconds;  // by repetition
};

/// One way to decode: the target alone, or the target with the draft.
struct DraftSide {
  int64_t block_length = 0;        // 0: the target alone
  std::vector<PromptRun> prompts;  // by prompt
};

struct DraftRuns {
  DraftSide alone;
  std::vector<DraftSide> drafted;  // by block length, as asked for
};

/// Called with the share of work that is done and a line of text.
using DraftProgress = std::function<void(double, const std::string&)>;

/// Each repetition starts with another side. Before them, each side decodes the first batch once as
/// a warm-up that is not counted. Throws InterruptedError after a signal (the caller holds the
/// InterruptGuard).
DraftRuns run_with_and_without(const DraftRunsInput& input, const DraftProgress& progress);

}  // namespace blockscope
