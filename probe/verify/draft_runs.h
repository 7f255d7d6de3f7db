// Decodes the same prompts with a target alone and with its DFlash draft, by turns, and keeps what
// every pass took. Nothing is recorded: times are those of the passes themselves (PassResult), so
// that neither side pays for being watched. Shared by `bench --draft` and `verify --draft`.
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
  DecodeOptions alone;  // token by token; sampling, stop tokens and prefill chunk are both sides'
  std::vector<int64_t> block_lengths;  // of rounds: each is a side of its own
  const std::vector<RunPrompt>& prompts;
  int64_t batch_size = 1;
  int64_t repeats = 3;
};

/// Seconds of a sequence's passes. A pass over several sequences is shared out evenly.
struct PassSeconds {
  double prefill = 0.0;
  double draft = 0.0;
  double target = 0.0;  // behind the prefill

  double decoding() const { return draft + target; }
  double total() const { return prefill + draft + target; }
  PassSeconds& operator+=(const PassSeconds& other);
};

/// One prompt, decoded one way. Everything but the times is of the first repetition.
struct PromptRun {
  std::vector<int64_t> generated;    // DecodeOutcome::generated
  int64_t prefill_tokens = 0;        // that the prefill decides: the draft's first one
  double draft_passes = 0.0;         // shares of passes, as their seconds
  double target_passes = 0.0;        // behind the prefill
  int64_t rounds = 0;                // passes of the target behind the prefill that it took part in
  std::vector<int64_t> accepted;     // by round: drafted tokens before gen_length; alone: none
  std::vector<PassSeconds> seconds;  // by repetition
};

/// One way to decode: the target alone, or with the draft.
struct DraftSide {
  int64_t block_length = 0;        // 0: the target alone
  std::vector<PromptRun> prompts;  // by prompt
};

struct DraftRuns {
  DraftSide alone;
  std::vector<DraftSide> drafted;  // by block length, as asked for
};

/// Called with the share of the work that is done and a line about it.
using DraftProgress = std::function<void(double, const std::string&)>;

/// Each repetition starts with another side; one decoding of the first batch by each of them warms
/// the machine up and is not counted. Throws InterruptedError when a signal arrives (the caller
/// holds the InterruptGuard).
DraftRuns run_with_and_without(const DraftRunsInput& input, const DraftProgress& progress);

}  // namespace blockscope
