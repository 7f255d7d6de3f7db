#include "probe/model/feed_forward.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "decode_record/base/error.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/torch/fallback_operators.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// The sum of a group's two best scores, by which groups are ranked.
float group_score(std::span<const float> scores) {
  float best = kNone;
  float second = kNone;
  for (const float score : scores) {
    second = std::max(second, std::min(best, score));
    best = std::max(best, score);
  }
  return scores.size() > 1 ? best + second : best;
}

/// Moves the `count` entries with the largest score to the front of `order`, by falling score.
/// Equal scores keep their order.
void rank_first(std::vector<int64_t>& order, int64_t count, std::span<const float> score) {
  const auto above = [&](int64_t a, int64_t b) {
    const float left = score[static_cast<size_t>(a)];
    const float right = score[static_cast<size_t>(b)];
    return left > right || (left == right && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), above);
}

/// scores [R, E] float32 -> the same, with -inf for the experts that the row's block does not keep.
/// Equal maxima: the lower expert.
at::Tensor kept_by_block(const at::Tensor& scores, const MoeConfig& config) {
  const int64_t rows = scores.size(0);
  if (rows % config.routing_block != 0) {
    throw UsageError(fmt::format(
        "block routing: expected passes of whole blocks of {} rows, got {} rows. HINT: use a block "
        "length that is a multiple of {}",
        config.routing_block, rows, config.routing_block));
  }
  const at::Tensor blocks =
      at::nan_to_num(scores, kNone).view({-1, config.routing_block, config.num_experts});
  const at::Tensor best = blocks.amax(1);
  const at::Tensor order = best.argsort(/*stable=*/true, -1, /*descending=*/true);
  const at::Tensor kept = at::zeros_like(best, best.options().dtype(at::kBool))
                              .scatter(1, order.narrow(1, 0, config.expert_capacity), true);
  return blocks.masked_fill(kept.unsqueeze(1).logical_not(), kNone).view({rows, -1});
}

/// scores [R, E] float32 -> the chosen experts [R, per_token] int64, on the host.
at::Tensor best_experts(const at::Tensor& scores, const MoeConfig& config) {
  const at::Tensor table =
      on_host(at::nan_to_num(scores, kNone)).contiguous();  // NaN: never chosen
  const int64_t rows = table.size(0);
  const auto experts = static_cast<size_t>(config.num_experts);
  const size_t group_size = experts / static_cast<size_t>(config.num_groups);
  at::Tensor chosen = at::empty({rows, config.experts_per_token}, at::kLong);
  auto* out = chosen.data_ptr<int64_t>();
  std::vector<float> group_scores(static_cast<size_t>(config.num_groups));
  std::vector<int64_t> groups(group_scores.size());
  std::vector<int64_t> candidates;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> score(table.const_data_ptr<float>() + row * config.num_experts,
                                       experts);
    candidates.clear();
    std::iota(groups.begin(), groups.end(), 0);
    if (config.kept_groups < config.num_groups) {
      for (size_t g = 0; g < groups.size(); ++g) {
        group_scores[g] = group_score(score.subspan(g * group_size, group_size));
      }
      rank_first(groups, config.kept_groups, group_scores);
    }
    for (int64_t g = 0; g < config.kept_groups; ++g) {
      const int64_t first = groups[static_cast<size_t>(g)] * static_cast<int64_t>(group_size);
      for (size_t e = 0; e < group_size; ++e) {
        candidates.push_back(first + static_cast<int64_t>(e));
      }
    }
    rank_first(candidates, config.experts_per_token, score);
    out = std::copy_n(candidates.begin(), config.experts_per_token, out);
  }
  return chosen;
}

/// The same on the device of the scores, which waits for nothing.
at::Tensor best_experts_there(const at::Tensor& scores, const MoeConfig& config) {
  const auto falling = [](const at::Tensor& values) {
    return values.argsort(/*stable=*/true, -1, /*descending=*/true);
  };
  at::Tensor ranked = at::nan_to_num(scores, kNone);
  if (config.num_groups > config.kept_groups) {
    const at::Tensor in_groups = ranked.view({ranked.size(0), config.num_groups, -1});
    const auto [best, place] = in_groups.topk(std::min<int64_t>(2, in_groups.size(2)));
    const at::Tensor order = falling(best.sum(-1)).narrow(1, 0, config.kept_groups);
    const at::Tensor kept =
        at::zeros({ranked.size(0), config.num_groups}, ranked.options().dtype(at::kBool))
            .scatter(1, order, true);
    ranked = in_groups.masked_fill(kept.unsqueeze(-1).logical_not(), kNone).view(ranked.sizes());
  }
  return falling(ranked).narrow(1, 0, config.experts_per_token);
}

/// The R * per_token choices of all rows, sorted by expert.
struct ByExpert {
  std::vector<int64_t> count;  // [E] choices of each expert
  at::Tensor row;              // [R * per_token] row of each choice, in sorted order
  at::Tensor back;             // [R * per_token] place of each choice in the sorted order
};

ByExpert by_expert(const at::Tensor& chosen, size_t num_experts) {
  const std::span<const int64_t> expert(chosen.const_data_ptr<int64_t>(),
                                        static_cast<size_t>(chosen.numel()));
  ByExpert result;
  result.count.assign(num_experts, 0);
  for (const int64_t e : expert) ++result.count[static_cast<size_t>(e)];
  std::vector<int64_t> next(num_experts, 0);
  std::exclusive_scan(result.count.begin(), result.count.end(), next.begin(), int64_t{0});
  result.row = at::empty({chosen.numel()}, at::kLong);
  result.back = at::empty({chosen.numel()}, at::kLong);
  auto* row = result.row.data_ptr<int64_t>();
  auto* back = result.back.data_ptr<int64_t>();
  for (size_t place = 0; place < expert.size(); ++place) {
    const int64_t at = next[static_cast<size_t>(expert[place])]++;
    row[at] = static_cast<int64_t>(place) / chosen.size(1);
    back[place] = at;
  }
  return result;
}

}  // namespace

at::Tensor GatedMlp::operator()(const at::Tensor& x) const {
  if (gate_up.defined()) return down(gate_up(x));
  if (activation == Activation::gelu_tanh) return down(at::gelu(gate(x), "tanh") * up(x));
  if (gate_and_up.defined()) {
    const std::vector<at::Tensor> halves = gate_and_up(x).chunk(2, -1);
    return down(silu_multiply(halves[0], halves[1]));
  }
  const at::Tensor gated = gate(x);
  const auto multiply = gated.requires_grad() ? fallback::silu_multiply : silu_multiply;
  return down(multiply(gated, up(x)));
}

void GatedMlp::pack() {
  gate_and_up = joined({&gate, &up});
  if (gate.weight().defined() && PackedMatrix::fits(gate.weight())) {
    gate_up = PackedMatrix::gated(gate.weight(), up.weight(), activation);
    gate = up = Linear();
  }
  for (Linear* linear : {&gate, &up, &down}) linear->pack();
}

ExpertMixture::Routed ExpertMixture::route(const at::Tensor& rows) const {
  at::Tensor score;
  Routed routed;
  RouterChoice& choice = routed.choice;
  const auto choose = [&](const at::Tensor& ranked) {
    if (grouped != nullptr) {
      choice.expert = best_experts_there(ranked, config);
    } else {
      routed.expert = best_experts(ranked, config);
      choice.expert = on_device(routed.expert, ranked.device());
    }
  };
  if (config.sigmoid) {
    score = at::sigmoid(router(rows.to(at::kFloat)));
    const at::Tensor ranked = score + bias;
    choose(config.expert_capacity > 0 ? kept_by_block(ranked, config) : ranked);
  } else {
    score = at::softmax(router(rows), -1, at::kFloat);
    choose(score);
  }
  choice.weight = score.gather(1, choice.expert);
  if (config.normalise) {
    const at::Tensor sum = choice.weight.sum(-1, true);
    choice.weight = choice.weight / (config.sigmoid ? sum + 1e-20 : sum);
  }
  if (config.scaling != 1.0) choice.weight = choice.weight * config.scaling;
  if (factor.defined()) choice.weight = choice.weight * factor.index({choice.expert});
  return routed;
}

/// input [R * per_token, hidden], sorted by expert, `rows` [E] rows of each -> the same shape.
at::Tensor ExpertMixture::expert_outputs(const at::Tensor& input,
                                         const std::vector<int64_t>& rows) const {
  const GatedMlp& any = experts.front();
  if (any.gate_up.defined() && any.down.matrix().defined()) {
    std::vector<MatrixRows> first;
    std::vector<MatrixRows> second;
    for (size_t e = 0; e < experts.size(); ++e) {
      first.push_back({&experts[e].gate_up, rows[e]});
      second.push_back({&experts[e].down.matrix(), rows[e]});
    }
    return packed_products(packed_products(input, first), second);
  }
  std::vector<at::Tensor> made;
  int64_t begin = 0;
  for (size_t e = 0; e < experts.size(); ++e) {
    if (rows[e] == 0) continue;
    made.push_back(experts[e](input.narrow(0, begin, rows[e])));
    begin += rows[e];
  }
  return at::cat(made);
}

/// rows [R, hidden], chosen [R, per_token] on the host -> [R * per_token, hidden], choice by
/// choice.
at::Tensor ExpertMixture::listed_outputs(const at::Tensor& rows, const at::Tensor& chosen) const {
  const ByExpert places = by_expert(chosen, experts.size());
  const at::Tensor input = rows.index_select(0, on_device(places.row, rows.device()));
  return expert_outputs(input, places.count).index_select(0, on_device(places.back, rows.device()));
}

/// The same for a choice on the rows' device.
at::Tensor ExpertMixture::grouped_outputs(const at::Tensor& rows, const at::Tensor& chosen) const {
  const auto [expert, order] = chosen.flatten().sort(/*stable=*/true, 0, /*descending=*/false);
  const at::TensorOptions index = order.options();
  const at::Tensor ends =
      at::searchsorted(expert, at::arange(config.num_experts, index), /*out_int32=*/true,
                       /*right=*/true);
  const at::Tensor input = rows.index_select(0, order.div(chosen.size(1), "floor"));
  const std::vector<at::Tensor> halves = grouped(input, all_gate_up, ends).chunk(2, -1);
  const at::Tensor gated = experts.front().activation == Activation::gelu_tanh
                               ? at::gelu(halves[0], "tanh") * halves[1]
                               : silu_multiply(halves[0], halves[1]);
  const at::Tensor back =
      at::empty_like(order).scatter_(0, order, at::arange(order.size(0), index));
  return grouped(gated, all_down, ends).index_select(0, back);
}

at::Tensor ExpertMixture::routed_by(const at::Tensor& x, const at::Tensor& scored,
                                    const RouterListener& heard) const {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const auto [choice, expert] = route(scored.reshape({-1, x.size(-1)}));
  if (heard) {
    const std::vector<int64_t> shape{x.size(0), x.size(1), config.experts_per_token};
    heard({choice.expert.view(shape), choice.weight.view(shape)});
  }
  const at::ScalarType type = config.sigmoid ? at::kFloat : x.scalar_type();
  const at::Tensor by_row =
      (grouped != nullptr ? grouped_outputs(rows, choice.expert) : listed_outputs(rows, expert))
          .view({rows.size(0), config.experts_per_token, rows.size(1)});
  const at::Tensor weighted = by_row.to(type) * choice.weight.to(type).unsqueeze(-1);
  const at::Tensor out = weighted.sum(1).to(x.scalar_type()).view(x.sizes());
  return shared ? out + (*shared)(x) : out;
}

void ExpertMixture::pack() {
  std::vector<const Linear*> first, second;
  for (const GatedMlp& expert : experts) {
    first.insert(first.end(), {&expert.gate, &expert.up});
    second.push_back(&expert.down);
  }
  const Linear gate_up = joined(first);
  const Linear down = joined(second);
  const int64_t width = config.intermediate_size;
  if (gate_up.defined() && down.defined() && !gate_up.bias().defined() && !down.bias().defined()) {
    const at::Tensor& weight = gate_up.weight();
    const int64_t hidden = weight.size(1);
    const int64_t aligned = 16 / weight.element_size();
    if (width % aligned == 0 && hidden % aligned == 0) {
      grouped = grouped_product_of(weight.device(), weight.scalar_type());
      all_gate_up = weight.view({config.num_experts, 2 * width, hidden});
      all_down = down.weight().view({config.num_experts, hidden, width});
    }
  }
  for (GatedMlp& expert : experts) expert.pack();
  if (shared) shared->pack();
}

at::Tensor MlpAndExperts::operator()(const at::Tensor& x, const at::Tensor& residual,
                                     const RouterListener& heard) const {
  const at::Tensor dense = mlp_norm(mlp(x));
  const at::Tensor mixed = experts.routed_by(expert_input(residual), router_input(residual), heard);
  return out_norm(dense + expert_norm(mixed));
}

void MlpAndExperts::pack() {
  mlp.pack();
  experts.pack();
}

at::Tensor apply(const FeedForward& feed_forward, const at::Tensor& x, const at::Tensor& residual,
                 const RouterListener& heard) {
  if (const auto* mlp = std::get_if<GatedMlp>(&feed_forward)) return (*mlp)(x);
  if (const auto* mixture = std::get_if<ExpertMixture>(&feed_forward)) return (*mixture)(x, heard);
  return std::get<MlpAndExperts>(feed_forward)(x, residual, heard);
}

}  // namespace blockscope
