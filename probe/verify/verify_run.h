// Decodes the same prompts with a reference and with other policies. Free runs are repeated and
// interleaved, for the times. One more run replays the reference's run, for everything that is
// compared with exact attention step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

struct VerifyInput {
  const LoadedModel& model;
  const DecodeOptions& decode;  // for all runs; block diffusion
  const std::vector<RunPrompt>& prompts;
  const Tokenizer* tokenizer;  // may be null
  int64_t batch_size = 1;
  int64_t repeats = 3;  // of the free runs, for the times
};

/// Called with the share of work that is done and a line of text.
using VerifyProgress = std::function<void(double, const std::string&)>;

/// Equal settings (one policy with the same options, tau and mask) are measured once. The reference
/// always has a run of its own. Throws Error after a signal (the caller holds the InterruptGuard).
VerifyResult verify_policies(const VerifyInput& input, const PolicySetting& reference,
                             const std::vector<PolicySetting>& settings,
                             const VerifyProgress& progress);

}  // namespace blockscope
