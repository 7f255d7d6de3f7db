// Decodes the same prompts with a reference and with other policies: free-running, repeated and
// interleaved for the times, and once more under replay of the reference's run for everything that
// is compared with exact attention step by step.
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
  const DecodeOptions& decode;  // of all runs; block-diffusion
  const std::vector<RunPrompt>& prompts;
  const Tokenizer* tokenizer;  // may be null
  int64_t batch_size = 1;
  int64_t repeats = 3;  // of the free runs, for the times
};

/// Called with the share of the work that is done and a line about it.
using VerifyProgress = std::function<void(double, const std::string&)>;

/// Settings that do the same (one policy with the same options, tau and mask) are measured once;
/// the reference is a run of its own, whatever it is. Throws Error when a signal arrives (the
/// caller holds the InterruptGuard).
VerifyResult verify_policies(const VerifyInput& input, const PolicySetting& reference,
                             const std::vector<PolicySetting>& settings,
                             const VerifyProgress& progress);

}  // namespace blockscope
