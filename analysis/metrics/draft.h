// When a target accepts drafted tokens, and what other block lengths would gain. From /draft,
// /draft/cost and the LSEs of the draft's attention, if the trace has them.
//
// A round drafts positions 1 to B - 1 of its block and accepts the first `accepted` of them.
// Positions after the answer's end are always left out. For a round with the drafted positions 1 to
// I in the answer:
//   length      min(accepted, I) + 1: the tokens it added, including the target's own;
//   reached     position p <= I with accepted >= p - 1: all drafted tokens before it were accepted;
//   acceptance  share of reached positions with accepted >= p. By entropy, rank or depth, too, only
//               reached positions count: after a rejection, the draft continues discarded text;
//   survival    share of all rounds with length > p, so that 1 + sum over p is the mean length.
// Predicted speed-up of blocks of b positions over the target alone. length(b) = mean of
// min(length, b). T is measured in the same run, and linear between measured block lengths:
//   length(b) T_target(1) / (T_draft(b) + T_target(b)).
// It assumes that a shorter block drafts the same tokens as the beginning of a longer one, and that
// its rounds begin at similar places as those of the run.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays:
///   means [quantity]: over rounds, and over reached positions;
///   lengths [length]: rounds; survival, acceptance [position], from 1;
///   by_draft_entropy, by_target_entropy (bins in nats), by_drafted_rank_under_target (rank of the
///     drafted token), by_target_rank_under_draft (rank of the target's token), by_depth (bins of
///     context_length): acceptance;
///   within_best [candidates]: share of reached positions where the target's token is among that
///     many best tokens of the draft;
///   selector [selection]: what the selector of a DFlash 2 draft did; among_candidates [position]:
///     share of reached positions where the target's token was one of its candidates; by_chosen
///     [candidate]: acceptance by the chosen one, from 0, the most probable. Only if all traces
///     have candidates;
///   by_external_mass [layer, mass_bin]: acceptance by the share of the attention that goes to the
///     context's features, mean over heads; mass_accepted, mass_refused [layer, head]. Only for
///     traces with the draft's attention, not the target's;
///   length_by_depth [context_length], length_by_sequence [sequence], length_by_task [task]: mean
///     length. A task is a sequence's name without the numbers at its end;
///   symptoms, symptom_seen [symptom]: see draft_symptoms.h;
///   tokens_per_round, draft_time, target_time, speedup [block_length]: as above, over the traces
///     with /draft/cost.
/// Terms are reached positions; for lengths, rounds.
std::unique_ptr<StepMetric> make_draft_metric();

}  // namespace blockscope
