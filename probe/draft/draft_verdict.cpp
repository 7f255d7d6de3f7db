#include "probe/draft/draft_verdict.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>

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

DraftCandidates list_candidates(const SelectorPath& path, int64_t s, const at::Tensor& logits,
                                const std::vector<int64_t>& chosen) {
  const int64_t slots = path.token.size(1);
  const int64_t count = path.token.size(2);
  const at::Tensor token = path.token[s].contiguous();
  const at::Tensor score = path.score[s].contiguous();
  const at::Tensor all = logits.to(at::kFloat);
  const at::Tensor probability =
      (all.gather(1, token.to(all.device())) - all.logsumexp(1, true)).exp().to(at::kCPU);
  DraftCandidates candidates;  // the certain token had none
  candidates.token.assign(static_cast<size_t>(count), -1);
  candidates.probability.assign(static_cast<size_t>(count), kNaN);
  candidates.score = candidates.probability;
  candidates.chosen = candidates.target = {-1};
  const auto append = [](auto& to, const at::Tensor& from) {
    const auto* first = from.const_data_ptr<typename std::decay_t<decltype(to)>::value_type>();
    to.insert(to.end(), first, first + from.numel());
  };
  append(candidates.token, token);
  append(candidates.probability, probability.contiguous());
  append(candidates.score, score);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const auto at = static_cast<size_t>(slot);
    candidates.chosen.push_back(path.chosen[static_cast<size_t>(s * slots) + at]);
    const auto first = candidates.token.begin() + (slot + 1) * count;
    const auto found = std::find(first, first + count, chosen[at]);
    candidates.target.push_back(found == first + count ? -1 : found - first);
  }
  return candidates;
}

std::vector<float> chosen_probability(const DraftCandidates& candidates) {
  const size_t count = candidates.token.size() / candidates.chosen.size();
  std::vector<float> result;
  for (size_t p = 1; p < candidates.chosen.size(); ++p) {
    result.push_back(candidates.probability[p * count + static_cast<size_t>(candidates.chosen[p])]);
  }
  return result;
}

}  // namespace blockscope
