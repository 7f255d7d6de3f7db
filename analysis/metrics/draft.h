// Why a target accepts what its draft drafted, and what other block lengths would be worth. From
// /draft, /draft/cost and, where there are any, the LSEs of the draft's attention.
//
// A round drafts positions 1 to B - 1 of its block and accepts the first `accepted` of them. What
// lies behind the answer's end is left out everywhere: of a round whose last I positions alone are
// in the answer,
//   length      min(accepted, I) + 1: the tokens it added, its target's own with them;
//   reached     position p <= I with accepted >= p - 1: all before it were accepted;
//   acceptance  share of reached positions with accepted >= p. Against anything else the terms are
//               reached positions: behind a refused one the draft speaks of a text that isn't
//               there.
//   survival    share of all rounds with length > p, so that 1 + sum over p is the mean length.
// Predicted speed-up of blocks of b positions over the target alone, with length(b) = mean of
// min(length, b), T measured in the same run and linear between measured block lengths:
//   length(b) T_target(1) / (T_draft(b) + T_target(b)).
// It takes for granted that a shorter block drafts what the longer one drafted at its front, and
// that its rounds begin at places like those of the run.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays:
///   means [quantity]: of rounds, and of reached positions;
///   lengths [length]: rounds; survival, acceptance [position], from 1;
///   by_draft_entropy, by_target_entropy (bins in nats), by_drafted_rank_under_target (of the
///   drafted token under
///     the target), by_target_rank_under_draft (of the target's token under the draft), by_depth
///     (of context_length): acceptance;
///   within_best [candidates]: share of reached positions whose target's token is among as many
///     best of the draft;
///   by_external_mass [layer, mass_bin]: acceptance, by the share of the attention that goes
///     to the context's features, mean over heads; mass_accepted, mass_refused [layer, head]; of
///     traces that have the draft's attention, not its target's;
///   length_by_depth [context_length], length_by_sequence [sequence], length_by_task [task]: mean
///     length. A task is a sequence's name without the numbers at its end;
///   tokens_per_round, draft_time, target_time, speedup [block_length]: as above, of those traces
///     that have /draft/cost.
/// Terms are reached positions, or rounds of lengths.
std::unique_ptr<StepMetric> make_draft_metric();

}  // namespace blockscope
