// Recorded trajectories as requests of the decoder. Another model or policy gets the same prompts,
// and the same tokens at the same steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/run/run_prompts.h"

namespace blockscope {

struct ReplaySource {
  int64_t block_length = 0;
  std::optional<int64_t> mask_token_id;  // none: canvases of random tokens
  std::vector<RunPrompt> prompts;  // requests with `replay` filled in, in the order of the trace
};

/// Reads every sequence of a trace that was not aborted. Throws TraceError. Throws PromptError for
/// an autoregressive trace, which has no blocks to replay, unless only answers are wanted.
ReplaySource read_replay(const std::string& path, bool answers_alone = false);

}  // namespace blockscope
