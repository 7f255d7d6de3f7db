#include "probe/draft/candidate_selector.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "probe/model/device.h"

namespace blockscope {
namespace {

/// A row's best tokens are in the parts of the row with the largest maxima, so only these parts are
/// sorted. at::topk over a whole vocabulary costs as much as a small layer.
constexpr int64_t kPart = 256;

}  // namespace

BestCandidates best_candidates(const at::Tensor& logits, int64_t count) {
  const int64_t vocabulary = logits.size(1);
  const int64_t parts = vocabulary / kPart;
  if (parts < 2 * count) {
    auto [logit, token] = at::topk(logits, count);
    return {token, logit};
  }
  at::Tensor largest = logits.narrow(1, 0, parts * kPart).unflatten(1, {parts, kPart}).amax(-1);
  const at::Tensor rest = logits.narrow(1, parts * kPart, vocabulary - parts * kPart);
  if (rest.size(1) > 0) largest = at::cat({largest, rest.amax(-1, true)}, 1);
  const at::Tensor part = std::get<1>(at::topk(largest, count));  // [R, C]
  const at::Tensor inside = at::arange(kPart, part.options());
  const at::Tensor tokens = (part.unsqueeze(-1) * kPart + inside).flatten(1);  // [R, C * kPart]
  const at::Tensor values =
      logits.gather(1, tokens.clamp_max(vocabulary - 1))
          .masked_fill(tokens >= vocabulary, -std::numeric_limits<double>::infinity());
  const auto [logit, place] = at::topk(values, count);
  return {tokens.gather(1, place), logit};
}

CandidateSelector::CandidateSelector(at::Tensor predecessor, at::Tensor successor,
                                     at::Tensor hidden_projection)
    : predecessor_(std::move(predecessor)),
      successor_(std::move(successor)),
      projection_(std::move(hidden_projection)) {}

SelectorPath CandidateSelector::walk(const at::Tensor& hidden, const BestCandidates& candidates,
                                     const at::Tensor& certain) const {
  const at::Tensor& token = candidates.token;
  const int64_t sequences = token.size(0);
  const int64_t slots = token.size(1);
  const int64_t count = token.size(2);
  // The first slot has one predecessor, which is repeated to keep all slots in one product.
  const at::Tensor first =
      on_device(certain, token.device()).view({-1, 1, 1}).expand({sequences, 1, count});
  const at::Tensor before = at::cat({first, token.narrow(1, 0, slots - 1)}, 1);
  const at::Tensor gate = projection_(hidden).to(at::kFloat).unsqueeze(2);
  const at::Tensor from = at::embedding(predecessor_, before).to(at::kFloat) * gate;
  const at::Tensor to = at::embedding(successor_, token).to(at::kFloat);
  const at::Tensor scores =
      (at::matmul(from, to.transpose(-1, -2)) + candidates.logit.to(at::kFloat).unsqueeze(2))
          .to(at::kCPU)
          .contiguous();  // [S, L, C before, C]
  SelectorPath path{token.to(at::kCPU), at::empty({sequences, slots, count}, at::kFloat), {}};
  const auto* from_all = scores.const_data_ptr<float>();
  auto* kept = path.score.mutable_data_ptr<float>();
  int64_t taken = 0;
  for (int64_t slot = 0; slot < sequences * slots; ++slot) {
    if (slot % slots == 0) taken = 0;
    const float* begin = from_all + (slot * count + taken) * count;
    std::copy_n(begin, count, kept + slot * count);
    taken = std::max_element(begin, begin + count) - begin;
    path.chosen.push_back(taken);
  }
  return path;
}

}  // namespace blockscope
