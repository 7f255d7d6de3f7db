#include "probe/draft/draft_verdict.h"

#include <ATen/ATen.h>

#include <limits>

namespace blockscope {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Of each row's token: how many have larger logits, its probability; and the rows' entropies.
struct RowScores {
  at::Tensor rank, probability, entropy;  // [R]
};

RowScores scores_of(const at::Tensor& all_logits, const at::Tensor& tokens) {
  const at::Tensor logits = all_logits.to(at::kFloat);
  const at::Tensor column = tokens.to(logits.device()).unsqueeze(-1);
  const at::Tensor own = logits.gather(-1, column);
  const at::Tensor log_p = logits.log_softmax(-1);
  // A token that can't come has p log p = 0, not NaN.
  const at::Tensor terms = (log_p.exp() * log_p).nan_to_num(0.0);
  return {(logits > own).sum(-1).to(at::kCPU),
          log_p.gather(-1, column).squeeze(-1).exp().to(at::kCPU),
          terms.sum(-1).neg().to(at::kCPU)};
}

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
                         const std::vector<int64_t>& drafted, const std::vector<int64_t>& chosen,
                         const at::Tensor& target_ids) {
  const auto count = static_cast<int64_t>(drafted.size());
  const std::vector<int64_t> known = draft_ids(chosen, target_ids);
  const RowScores under_draft =
      scores_of(draft_logits.narrow(0, 0, count), at::tensor(known, at::kLong).clamp_min(0));
  const RowScores under_target =
      scores_of(target_logits.narrow(0, 0, count), at::tensor(drafted, at::kLong));
  DraftVerdict verdict;
  verdict.target_token = verdict.target_rank = verdict.draft_rank = {-1};
  verdict.target_probability = verdict.draft_probability = verdict.draft_entropy =
      verdict.target_entropy = {kNaN};
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool there = known[at] >= 0;
    const auto whole = [i](const at::Tensor& x) { return x[i].item<int64_t>(); };
    const auto number = [i](const at::Tensor& x) { return x[i].item<float>(); };
    verdict.target_token.push_back(chosen[at]);
    verdict.target_rank.push_back(there ? whole(under_draft.rank) : -1);
    verdict.target_probability.push_back(there ? number(under_draft.probability) : kNaN);
    verdict.draft_rank.push_back(whole(under_target.rank));
    verdict.draft_probability.push_back(number(under_target.probability));
    verdict.draft_entropy.push_back(number(under_draft.entropy));
    verdict.target_entropy.push_back(number(under_target.entropy));
  }
  while (verdict.accepted < count && drafted[static_cast<size_t>(verdict.accepted)] ==
                                         chosen[static_cast<size_t>(verdict.accepted)]) {
    ++verdict.accepted;
  }
  return verdict;
}

}  // namespace blockscope
