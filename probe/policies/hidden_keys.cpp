#include "probe/policies/hidden_keys.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "decode_record/base/error.h"
#include "decode_record/schema/trace_meta.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

/// Absolute positions of the keys: external ones from `first` on, then the block's. External key i
/// of a bidirectional model comes after the block from block_start on.
std::vector<int64_t> positions_of(const SequencePass& pass, int64_t first, int64_t external,
                                  int64_t internal) {
  std::vector<int64_t> positions;
  for (int64_t i = first; i < first + external; ++i) {
    positions.push_back(i < pass.block_start ? i : i + internal);
  }
  for (int64_t i = 0; i < internal; ++i) positions.push_back(pass.block_start + i);
  return positions;
}

std::string_view region_of(const SequencePass& pass, int64_t position, int64_t internal) {
  const std::vector<std::string>& names = pass.regions->names;
  const size_t count = names.empty() ? kRegionNames.size() : names.size();
  const SequenceRegions regions{RegionPlaces(count), std::ssize(*pass.prompt), pass.block_start,
                                pass.block_start + internal, pass.regions->of_token};
  const int64_t place = position - pass.block_start;
  const bool mask = place >= 0 && place < internal && pass.masked[static_cast<size_t>(place)];
  const size_t at = regions.at(position, mask);
  return names.empty() ? kRegionNames.at(at) : std::string_view(names.at(at));
}

/// The name of the part of the prompt at a position, also inside the block, where its region is
/// `decided`; empty: none.
std::string_view part_of(const SequencePass& pass, int64_t position) {
  const std::vector<uint8_t>& parts = pass.regions->of_token;
  if (position >= std::ssize(parts)) return {};
  const size_t region = parts[static_cast<size_t>(position)];
  const bool named = region > RegionPlaces(pass.regions->names.size()).prompt;
  return named ? std::string_view(pass.regions->names.at(region)) : std::string_view();
}

/// [N + T_in] bool, the same for all heads: by position, region or token.
at::Tensor hidden_for_all(const Intervention& given, const SequencePass& pass,
                          const std::vector<int64_t>& positions, int64_t internal) {
  if (given.token && std::ranges::find(*pass.prompt, *given.token) == pass.prompt->end()) {
    throw UsageError(fmt::format(
        "intervene hide_keys: token {}: expected a token of the prompt, got none in prompt {}. "
        "HINT: `blockscope info --datasets` and the tokenizer name the tokens",
        *given.token, pass.sequence));
  }
  at::Tensor hidden = at::zeros({std::ssize(positions)}, at::kBool);
  bool* out = hidden.mutable_data_ptr<bool>();
  for (const int64_t position : positions) {
    const bool of_prompt = position < std::ssize(*pass.prompt);
    *out++ =
        std::ranges::binary_search(given.positions, position) ||
        (!given.region.empty() && (region_of(pass, position, internal) == given.region ||
                                   part_of(pass, position) == given.region)) ||
        (given.token && of_prompt && (*pass.prompt)[static_cast<size_t>(position)] == *given.token);
  }
  return hidden;
}

/// [heads, N + T_in] bool: by the mean weights [heads, N + T_in] of each head.
at::Tensor hidden_by_weight(const Intervention& given, const at::Tensor& weights,
                            int64_t external) {
  at::Tensor hidden = at::zeros_like(weights, at::kBool);
  if (given.top) {
    const int64_t count = std::min(*given.top, weights.size(1));
    return hidden.scatter_(1, std::get<1>(weights.topk(count, 1)), true);
  }
  hidden.narrow(1, 0, external)
      .copy_(weights.narrow(1, 0, external) > *given.sinks / static_cast<double>(weights.size(1)));
  return hidden;
}

/// Attention of scores [heads, T, N] over values [heads, N, D]: output [heads, T, D], lse [heads,
/// T]; 0 and -inf without a visible key.
std::pair<at::Tensor, at::Tensor> attend(const at::Tensor& scores, const at::Tensor& values) {
  const at::Tensor lse = at::logsumexp(scores, {-1});
  const at::Tensor origin = lse.masked_fill(lse == kHiddenScore, 0.0).unsqueeze(-1);
  return {at::bmm((scores - origin).exp(), values), lse};
}

}  // namespace

bool hide_keys(const Intervention& given, InterventionSite& site, int64_t s,
               const at::Tensor& heads) {
  const SequencePass& pass = site.context.sequences[static_cast<size_t>(s)];
  const AttentionInput& input = site.input;
  const int64_t external = site.external.length[s].item<int64_t>();
  const int64_t first = site.external.windowed() ? site.external.first[s].item<int64_t>() : 0;
  const int64_t internal = input.k.size(2);
  const at::Device device = input.q.device();
  const bool by_weight = given.top || given.sinks;
  const std::vector<int64_t> positions = positions_of(pass, first, external, internal);
  at::Tensor hidden;
  if (!by_weight) {
    hidden = hidden_for_all(given, pass, positions, internal);
    if (!hidden.any().item<bool>()) return false;
    hidden = hidden.to(device).unsqueeze(0).expand({heads.numel(), -1});
  }
  const at::Tensor where = on_device(heads, device);
  const int64_t group = input.q.size(1) / input.k.size(1);
  const at::Tensor of_kv = at::div(where, group, "floor");
  const auto both = [&](const at::Tensor& outside, const at::Tensor& inside) {
    return at::cat({outside[s].narrow(1, 0, external), inside[s]}, 1)
        .index_select(0, of_kv)
        .to(at::kFloat);
  };
  const at::Tensor q = input.q[s].index_select(0, where).to(at::kFloat);
  at::Tensor scores = at::bmm(q, both(site.external.key, input.k).transpose(1, 2)) * input.scale;
  if (site.parts.selected.defined()) {  // keys outside the policy's set
    const at::Tensor set = on_device(site.parts.selected[s], device).index_select(0, of_kv);
    at::Tensor unread = at::ones({heads.numel(), external + 1}, set.options().dtype(at::kBool));
    const at::Tensor places = set.to(at::kLong);
    unread.scatter_(1, at::where(places < 0, external, places), false);
    // -1 throughout: the whole prefix was read.
    unread.logical_and_((set >= 0).any(1, true));
    scores.narrow(2, 0, external)
        .masked_fill_(unread.narrow(1, 0, external).unsqueeze(1), kHiddenScore);
  }
  if (by_weight) {
    const at::Tensor weights = scores.softmax(-1).mean(1);
    hidden = hidden_by_weight(given, weights, external);
    if (!hidden.any().item<bool>()) return false;
  }
  at::Tensor& all = site.hidden[static_cast<size_t>(s)];
  if (!all.defined()) {
    all = at::zeros({input.q.size(1), external + internal}, hidden.options());
  }
  hidden = hidden.logical_or(all.index_select(0, where));
  all.index_copy_(0, where, hidden);
  scores.masked_fill_(hidden.unsqueeze(1), kHiddenScore);
  const at::Tensor values = both(site.external.value, input.v);
  AttentionParts& parts = site.parts;
  const auto put = [&](int64_t first, int64_t count, at::Tensor& output, at::Tensor& lse) {
    const auto [found, found_lse] =
        attend(scores.narrow(2, first, count), values.narrow(1, first, count));
    output[s].index_copy_(0, where, found);
    lse[s].index_copy_(0, where, found_lse);
  };
  put(0, external, parts.external, parts.lse_external);
  put(external, internal, parts.internal, parts.lse_internal);
  if (parts.residual.defined()) {
    parts.lse_residual[s].index_fill_(0, on_device(heads, parts.lse_residual.device()),
                                      kHiddenScore);
  }
  return true;
}

}  // namespace blockscope
