#include "probe/decode/unmasking.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/decode/choice_names.h"
#include "probe/decode/wino.h"

namespace blockscope {
namespace {

constexpr std::array<std::pair<Strategy, const char*>, 10> kStrategyNames{{
    {Strategy::kSequential, "sequential"},
    {Strategy::kLowConfidenceStatic, "low_confidence_static"},
    {Strategy::kLowConfidenceDynamic, "low_confidence_dynamic"},
    {Strategy::kEntropyBounded, "entropy_bounded"},
    {Strategy::kThreshold, "threshold"},
    {Strategy::kFactor, "factor"},
    {Strategy::kPrefixOrdered, "prefix_ordered"},
    {Strategy::kKlass, "klass"},
    {Strategy::kPcSampler, "pc_sampler"},
    {Strategy::kWino, "wino"},
}};

constexpr std::array<std::pair<RankBy, const char*>, 3> kRankByNames{{
    {RankBy::kConfidence, "confidence"},
    {RankBy::kMargin, "margin"},
    {RankBy::kNegativeEntropy, "negative_entropy"},
}};

std::vector<int64_t> masked_positions(const std::vector<bool>& masked) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < masked.size(); ++i) {
    if (masked[i]) positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

/// What the strategy ranks and compares with its threshold, for every position of the block.
std::vector<double> scores_of(const UnmaskingOptions& options, const BlockPrediction& prediction,
                              const std::vector<float>& density) {
  std::vector<double> score = prediction.score;
  if (options.strategy == Strategy::kPcSampler) {
    const std::vector<float> scores =
        pc_scores(prediction.token, prediction.confidence, options.frequencies->share,
                  options.pc_lambda, options.pc_alpha);
    score.assign(scores.begin(), scores.end());
  } else if (score.empty()) {
    score.assign(prediction.confidence.begin(), prediction.confidence.end());
  }
  for (size_t i = 0; i < density.size(); ++i) {
    score[i] = static_cast<float>(score[i]) * density[i];  // in float32, as scores are
  }
  return score;
}

/// Masked positions by falling score, ties to the lower position.
std::vector<int64_t> ranked(const std::vector<double>& score, std::vector<int64_t> positions) {
  std::stable_sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  return positions;
}

size_t count_entropy_bounded(const UnmaskingOptions& options, const BlockPrediction& prediction,
                             std::vector<int64_t>& order) {
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return prediction.entropy[static_cast<size_t>(a)] < prediction.entropy[static_cast<size_t>(b)];
  });
  size_t count = 0;
  double sum = 0.0;
  for (const int64_t position : order) {
    sum += static_cast<double>(prediction.entropy[static_cast<size_t>(position)]);
    if (!(static_cast<float>(sum) < static_cast<float>(options.eb_threshold))) break;
    ++count;
  }
  return std::clamp<size_t>(count, 1, order.size());
}

size_t count_factor(double factor, const std::vector<double>& score,
                    const std::vector<int64_t>& order) {
  // Fast-dLLM's loop: rank i (from 0) needs a score >= 1 - factor/(i + 2), rank 0 nothing; it
  // stops at the first that fails or at the last rank, and a stop at 0 or at the last takes one
  // more.
  const size_t last = order.size() - 1;
  size_t stop = last;
  for (size_t i = 1; i < order.size(); ++i) {
    const double needed = 1.0 - factor / static_cast<double>(i + 2);
    if (score[static_cast<size_t>(order[i])] < needed) {
      stop = i;
      break;
    }
  }
  return stop == 0 || stop == last ? stop + 1 : stop;
}

/// Length of the leading run of `order` whose score passes.
template <typename Passes>
size_t leading(const std::vector<double>& score, const std::vector<int64_t>& order, Passes passes) {
  size_t count = 0;
  while (count < order.size() && passes(score[static_cast<size_t>(order[count])])) ++count;
  return count;
}

/// Length of the run of neighbours that `positions`, ascending, begins with.
size_t unbroken(const std::vector<int64_t>& positions) {
  size_t count = 1;
  while (count < positions.size() && positions[count] == positions[count - 1] + 1) ++count;
  return count;
}

}  // namespace

Strategy parse_strategy(const std::string& name) {
  return parse_choice(kStrategyNames, "--strategy", name);
}

RankBy parse_rank_by(const std::string& name) {
  return parse_choice(kRankByNames, "--rank-by", name);
}

std::string strategy_name(Strategy strategy) { return choice_name(kStrategyNames, strategy); }

std::string rank_by_name(RankBy rank_by) { return choice_name(kRankByNames, rank_by); }

bool heeds_rank_by(Strategy strategy) {
  return strategy == Strategy::kLowConfidenceStatic ||
         strategy == Strategy::kLowConfidenceDynamic || strategy == Strategy::kThreshold ||
         strategy == Strategy::kFactor || strategy == Strategy::kPrefixOrdered;
}

bool heeds_threshold(Strategy strategy) {
  return strategy == Strategy::kLowConfidenceDynamic || strategy == Strategy::kThreshold ||
         strategy == Strategy::kPrefixOrdered || strategy == Strategy::kKlass ||
         strategy == Strategy::kWino;
}

bool heeds_density(Strategy strategy) {
  return heeds_rank_by(strategy) || strategy == Strategy::kPcSampler;
}

bool heeds_quota(Strategy strategy, Quota quota) {
  if (quota == Quota::kCarry) return strategy == Strategy::kThreshold;
  return strategy != Strategy::kEntropyBounded && strategy != Strategy::kThreshold &&
         strategy != Strategy::kFactor && strategy != Strategy::kWino;
}

double default_threshold(Strategy strategy) {
  if (strategy == Strategy::kWino) return kWinoThreshold;
  return strategy == Strategy::kKlass ? 0.9 : 0.85;
}

void check_unmasking_options(const UnmaskingOptions& options) {
  if (options.block_length < 1) {
    throw UsageError(
        fmt::format("--block-length: expected at least 1, got {}", options.block_length));
  }
  if (options.denoising_steps < 1 || options.denoising_steps > options.block_length) {
    throw UsageError(fmt::format(
        "--denoising-steps: expected 1 to the block length {}, got {}. HINT: more steps than "
        "positions would leave steps without a token",
        options.block_length, options.denoising_steps));
  }
  if (options.quota == Quota::kCarry && options.strategy != Strategy::kThreshold) {
    throw UsageError(
        fmt::format("--quota carry: expected --strategy threshold, got {}. HINT: even or linear",
                    strategy_name(options.strategy)));
  }
  if (options.rank_by == RankBy::kNegativeEntropy && heeds_rank_by(options.strategy) &&
      heeds_threshold(options.strategy)) {
    if (!(options.threshold <= 0.0) || !std::isfinite(options.threshold)) {
      throw UsageError(fmt::format(
          "--threshold: expected a negative entropy in nats, at most 0, got {}. HINT: --rank-by "
          "negative_entropy compares it with sum p log p: -0.5 takes what is surer than 0.5 nats",
          options.threshold));
    }
  } else if (!(options.threshold >= 0.0 && options.threshold <= 1.0)) {
    throw UsageError(
        fmt::format("--threshold: expected a probability in [0, 1], got {}", options.threshold));
  }
  if (!(options.eb_threshold >= 0.0) || !std::isfinite(options.eb_threshold)) {
    throw UsageError(fmt::format("--eb-threshold: expected a finite number of nats >= 0, got {}",
                                 options.eb_threshold));
  }
  if (!(options.factor > 0.0) || !std::isfinite(options.factor)) {
    throw UsageError(fmt::format("--factor: expected a finite number > 0, got {}", options.factor));
  }
  if (!(options.density_sigma >= 0.0) || !std::isfinite(options.density_sigma)) {
    throw UsageError(
        fmt::format("--density-sigma: expected a finite number of positions > 0, got {}",
                    options.density_sigma));
  }
  if (!(options.kl_threshold > 0.0) || !std::isfinite(options.kl_threshold)) {
    throw UsageError(fmt::format("--kl-threshold: expected a finite number of nats > 0, got {}",
                                 options.kl_threshold));
  }
  if (options.kl_history < 1) {
    throw UsageError(
        fmt::format("--kl-history: expected at least one step, got {}", options.kl_history));
  }
  if (!(options.threshold_back > 0.0 && options.threshold_back <= 1.0)) {
    throw UsageError(fmt::format("--threshold-back: expected a number in (0, 1], got {}",
                                 options.threshold_back));
  }
  if (!(options.pc_lambda >= 0.0) || !std::isfinite(options.pc_lambda)) {
    throw UsageError(
        fmt::format("--pc-lambda: expected a finite number >= 0, got {}", options.pc_lambda));
  }
  if (!(options.pc_alpha > 0.0) || !std::isfinite(options.pc_alpha)) {
    throw UsageError(
        fmt::format("--pc-alpha: expected a finite number > 0, got {}", options.pc_alpha));
  }
  if (options.strategy == Strategy::kPcSampler && options.frequencies == nullptr) {
    throw UsageError(
        "--strategy pc_sampler: expected --frequencies with how often each token occurs, got none. "
        "HINT: blockscope frequencies MODEL text.txt -o frequencies.json counts them");
  }
}

int64_t most_steps(const UnmaskingOptions& options) {
  const bool carries = options.quota == Quota::kCarry;
  return options.denoising_steps + (carries ? options.block_length : 0);
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

std::vector<int64_t> select_transfers(const UnmaskingOptions& options, int64_t step,
                                      const BlockPrediction& prediction,
                                      const std::vector<bool>& masked,
                                      const std::vector<float>& density, int64_t chosen,
                                      int64_t unseen) {
  std::vector<int64_t> order = masked_positions(masked);
  if (order.empty()) return order;
  const auto masks = static_cast<int64_t>(order.size());
  const int64_t quota = num_transfer_tokens(options, step, masks + unseen, chosen);
  const size_t due = static_cast<size_t>(std::min(quota, masks));
  const std::vector<double> score = scores_of(options, prediction, density);
  const double threshold = static_cast<float>(options.threshold);  // as scores are rounded
  size_t count = 0;
  switch (options.strategy) {
    case Strategy::kSequential: {
      // n consecutive positions from the first mask; a hole in the run is not overwritten.
      const int64_t end = order.front() + quota;
      count = static_cast<size_t>(
          std::count_if(order.begin(), order.end(), [&](int64_t p) { return p < end; }));
      break;
    }
    case Strategy::kLowConfidenceStatic:
    case Strategy::kPcSampler:
      order = ranked(score, std::move(order));
      count = due;
      break;
    case Strategy::kLowConfidenceDynamic:
      order = ranked(score, std::move(order));
      count = std::max(due, leading(score, order, [&](double s) { return s > threshold; }));
      break;
    case Strategy::kEntropyBounded:
      count = count_entropy_bounded(options, prediction, order);
      break;
    case Strategy::kThreshold:
      order = ranked(score, std::move(order));
      count = leading(score, order, [&](double s) { return s >= threshold; });
      if (options.quota == Quota::kCarry) count = std::min(count, due);
      count = std::max<size_t>(count, 1);
      break;
    case Strategy::kFactor:
      order = ranked(score, std::move(order));
      count = count_factor(options.factor, score, order);
      break;
    case Strategy::kPrefixOrdered: {
      order.resize(unbroken(order));
      count = leading(score, order, [&](double s) { return s >= threshold; });
      count = std::min(std::max(due, count), order.size());
      break;
    }
    case Strategy::kWino:
      return wino_wide_in(score, masked, options.threshold);
    case Strategy::kKlass:
      return select_klass(score, prediction.stable, masked, options.threshold,
                          static_cast<int64_t>(due), options.klass_choose, prediction.moved);
  }
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace blockscope
