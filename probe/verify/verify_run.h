// Decodes the same prompts densely and with reuse: free-running, repeated and interleaved for the
// times, and once more under replay of the dense run for everything that is compared step by step.
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
  const DecodeOptions& decode;  // of both runs; block-diffusion
  const std::vector<RunPrompt>& prompts;
  const Tokenizer* tokenizer;  // may be null
  int64_t batch_size = 1;
  int64_t repeats = 3;  // of the free runs, for the times
};

/// Called with the share of the work that is done and a line about it.
using VerifyProgress = std::function<void(double, const std::string&)>;

/// Settings with the same tau and mask are measured once. Throws Error when a signal arrives (the
/// caller holds the InterruptGuard).
VerifyResult verify_reuse(const VerifyInput& input, const std::vector<ReuseSetting>& settings,
                          const VerifyProgress& progress);

}  // namespace blockscope
