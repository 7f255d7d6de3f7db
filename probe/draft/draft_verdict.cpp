#include "probe/draft/draft_verdict.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "decode_record/base/nan.h"
#include "kernels/row_ops.h"

namespace blockscope {
namespace {

/// The draft's ids of these tokens; -1: it has none.
std::vector<int64_t> draft_ids(const std::vector<int64_t>& tokens, const at::Tensor& target_ids) {
  if (!target_ids.defined()) return tokens;
  std::vector<int64_t> ids;
  for (const int64_t token : tokens) {
    const at::Tensor found = (target_ids == token).nonzero();
    ids.push_back(found.size(0) == 0 ? -1 : found[0][0].item<int64_t>());
  }
  return ids;
}

}  // namespace

DraftVerdict judge_draft(const at::Tensor& draft_logits, const at::Tensor& target_logits,
                         const std::vector<int64_t>& drafted, const std::vector<float>& confidence,
                         const std::vector<int64_t>& chosen, const at::Tensor& target_ids) {
  const auto count = static_cast<int64_t>(drafted.size());
  const std::vector<int64_t> known = draft_ids(chosen, target_ids);
  std::vector<int64_t> columns = known;
  for (int64_t& column : columns) column = std::max<int64_t>(column, 0);
  const TokenOdds under_draft = token_odds(draft_logits.narrow(0, 0, count), columns);
  const TokenOdds under_target = token_odds(target_logits.narrow(0, 0, count), drafted);
  DraftVerdict verdict;
  verdict.token = verdict.target_token = verdict.target_rank_under_draft =
      verdict.drafted_rank_under_target = {-1};
  verdict.confidence = verdict.target_probability_under_draft =
      verdict.drafted_probability_under_target = verdict.draft_entropy =
          verdict.target_entropy = {kNaN};
  for (size_t at = 0; at < drafted.size(); ++at) {
    const bool there = known[at] >= 0;
    verdict.token.push_back(drafted[at]);
    verdict.confidence.push_back(confidence[at]);
    verdict.target_token.push_back(chosen[at]);
    verdict.target_rank_under_draft.push_back(there ? under_draft.rank[at] : -1);
    verdict.target_probability_under_draft.push_back(there ? under_draft.probability[at] : kNaN);
    verdict.drafted_rank_under_target.push_back(under_target.rank[at]);
    verdict.drafted_probability_under_target.push_back(under_target.probability[at]);
    verdict.draft_entropy.push_back(under_draft.entropy[at]);
    verdict.target_entropy.push_back(under_target.entropy[at]);
  }
  while (verdict.accepted < count && drafted[static_cast<size_t>(verdict.accepted)] ==
                                         chosen[static_cast<size_t>(verdict.accepted)]) {
    ++verdict.accepted;
  }
  return verdict;
}

}  // namespace blockscope
