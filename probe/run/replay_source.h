// Recorded trajectories as requests of the decoder: the same prompts, the same tokens at the same
// steps, for another model or policy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probe/run/run_prompts.h"

namespace blockscope {

struct ReplaySource {
  int64_t block_length = 0;
  int64_t mask_token_id = -1;
  std::vector<RunPrompt> prompts;  // requests with `replay` filled in, in the order of the trace
};

/// Reads every sequence of a trace that was not aborted. Throws TraceError; PromptError when the
/// trace is autoregressive (nothing to replay block by block), unless answers alone are wanted.
ReplaySource read_replay(const std::string& path, bool answers_alone = false);

}  // namespace blockscope
