#include "probe/strategies/unmasking.h"

#include <algorithm>
#include <utility>

#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

std::vector<int64_t> masked_positions(const std::vector<bool>& masked) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < masked.size(); ++i) {
    if (masked[i]) positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

/// The scores of all positions of the block, which the strategy ranks and compares with its
/// threshold.
std::vector<double> scores_of(const StrategyEntry& entry, const UnmaskingOptions& options,
                              const BlockPrediction& prediction,
                              const std::vector<float>& density) {
  std::vector<double> score = prediction.score;
  if (entry.answer_scores) {
    const std::vector<float> scores =
        entry.answer_scores(options, prediction.token, prediction.confidence, true);
    score.assign(scores.begin(), scores.end());
  } else if (score.empty()) {
    score.assign(prediction.confidence.begin(), prediction.confidence.end());
  }
  for (size_t i = 0; i < density.size(); ++i) {
    score[i] = static_cast<float>(score[i]) * density[i];  // in float32, like the scores
  }
  return score;
}

}  // namespace

int64_t most_steps(const UnmaskingOptions& options) {
  const int64_t limit = strategy_entry(options).step_limit;
  return limit > 0 ? limit : forecast_steps(options);
}

int64_t forecast_steps(const UnmaskingOptions& options) {
  const StrategyEntry& entry = strategy_entry(options);
  const bool carries = options.quota == Quota::kCarry;
  const int64_t post = entry.edit ? options.max_post_steps + 1 : 0;
  const int64_t steps = options.denoising_steps + (carries ? options.block_length : post);
  return entry.step_limit > 0 ? std::min(steps, entry.step_limit) : steps;
}

int64_t num_transfer_tokens(const UnmaskingOptions& options, int64_t step, int64_t masks,
                            int64_t chosen) {
  if (options.quota == Quota::kLinear) {
    return linear_quota(masks, options.denoising_steps, step);
  }
  if (options.quota == Quota::kCarry) {
    return carried_quota(options.block_length, chosen, options.denoising_steps, step);
  }
  return even_quota(options.block_length, options.denoising_steps, step);
}

void StrategyStep::rank() {
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
}

std::vector<int64_t> StrategyStep::best(std::size_t count) {
  rank();
  return first(count);
}

std::vector<int64_t> StrategyStep::first(std::size_t count) {
  order.resize(count);
  return std::move(order);
}

std::vector<int64_t> StrategyStep::above_or_due() {
  rank();
  const auto passes = [&](int64_t p) { return score[static_cast<size_t>(p)] > threshold(); };
  const auto end = std::ranges::find_if_not(order, passes);
  return first(std::max(due, static_cast<std::size_t>(end - order.begin())));
}

std::vector<int64_t> select_transfers(const UnmaskingOptions& options, int64_t step,
                                      const BlockPrediction& prediction,
                                      const std::vector<bool>& masked,
                                      const std::vector<float>& density, int64_t chosen,
                                      int64_t unseen) {
  std::vector<int64_t> order = masked_positions(masked);
  if (order.empty()) return order;
  const StrategyEntry& entry = strategy_entry(options);
  const auto masks = static_cast<int64_t>(order.size());
  StrategyStep here{options,          prediction,
                    masked,           scores_of(entry, options, prediction, density),
                    std::move(order), step};
  here.quota = num_transfer_tokens(options, step, masks + unseen, chosen);
  here.due = static_cast<size_t>(std::min(here.quota, masks));
  std::vector<int64_t> selected = entry.select(here);
  std::sort(selected.begin(), selected.end());
  return selected;
}

}  // namespace blockscope
