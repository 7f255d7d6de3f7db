// Whether rounding explains a token that differs between a drafted answer and the target's own. A
// pass over a block sums in another order than a pass over a single token. So only two tokens with
// nearly equal logits may change places.
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
  double gap = 0.0;        // logit of its token minus that of the drafted token, when it decided
  double gap_again = 0.0;  // the same gap after a prefill up to the last position
  double rounding = 0.0;   // largest difference of the two passes over the vocabulary
  double allowed = 0.0;    // largest gap of a tie

  /// False for NaN.
  bool tie() const { return std::abs(gap) <= allowed; }
};

/// For greedy runs. `alone`: the tokens that the target decided by itself (PromptRun::generated).
/// The target decodes them once more up to the difference, and once after a prefill. A tie is a gap
/// of at most twice the rounding, or of one unit in the last place of the largest logit, in the
/// model's dtype. `interrupted` may be empty; the gap is NaN if it ended this early.
TieFinding find_tie(const LoadedModel& target, const DecodeOptions& options,
                    const DecodeRequest& request, const std::vector<int64_t>& alone,
                    const TokenDifference& difference,
                    const std::function<bool()>& interrupted = {});

}  // namespace blockscope
