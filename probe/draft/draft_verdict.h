// Compares a draft's distributions with its target's, position by position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/draft/candidate_selector.h"

namespace blockscope {

/// Row i of both logits predicts position i + 1 of the block: draft [B - 1, draft vocabulary],
/// target [B or more, vocabulary]. drafted, chosen: the B - 1 tokens that the draft and the target
/// took at these positions, as ids of the target. confidence: the drafted tokens' probabilities
/// under the draft. target_ids: DraftModel::target_ids(). Softmax and entropy are float32, before
/// any temperature. A rank is the number of tokens with larger logits.
DraftVerdict judge_draft(const at::Tensor& draft_logits, const at::Tensor& target_logits,
                         const std::vector<int64_t>& drafted, const std::vector<float>& confidence,
                         const std::vector<int64_t>& chosen, const at::Tensor& target_ids);

/// What sequence `s` of the path had to choose from. logits [B - 1, draft vocabulary]: the draft's
/// before the selector; chosen: the B - 1 tokens that the target took.
DraftCandidates list_candidates(const SelectorPath& path, int64_t s, const at::Tensor& logits,
                                const std::vector<int64_t>& chosen);
/// The probabilities of the candidates that the selector chose, [B - 1].
std::vector<float> chosen_probability(const DraftCandidates& candidates);

}  // namespace blockscope
