// Whether a token that a drafted answer has otherwise than its target's own can be rounding: a
// target's pass over a block sums in another order than one over a single token, so two tokens
// whose logits are all but equal may change places, and no others may.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "probe/run/run_flags.h"
#include "probe/verify/draft_gain.h"

namespace blockscope {

/// Logits of the target alone at a TokenDifference.
struct TieFinding {
  double gap = 0.0;        // of its token over the drafted answer's, in the pass that decided it
  double gap_again = 0.0;  // the same after a prefill of everything before the last position
  double rounding = 0.0;   // what the two passes differ by at most, over the whole vocabulary
  double allowed = 0.0;    // for a tie

  /// False for NaN.
  bool tie() const { return std::abs(gap) <= allowed; }
};

/// `alone`: the tokens the target decided by itself (PromptRun::generated). Decodes them once more
/// up to the difference, and once from there. A tie is a gap of up to twice the rounding, or
/// one unit in the last place of the largest logit, in the dtype the model runs in. For greedy
/// runs. `interrupted` may be empty; NaN where it cut this short.
TieFinding find_tie(const LoadedModel& target, const DecodeOptions& options,
                    const DecodeRequest& request, const std::vector<int64_t>& alone,
                    const TokenDifference& difference,
                    const std::function<bool()>& interrupted = {});

}  // namespace blockscope
