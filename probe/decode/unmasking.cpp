#include "probe/decode/unmasking.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr std::array<std::pair<Strategy, const char*>, 6> kStrategyNames{{
    {Strategy::kSequential, "sequential"},
    {Strategy::kLowConfidenceStatic, "low_confidence_static"},
    {Strategy::kLowConfidenceDynamic, "low_confidence_dynamic"},
    {Strategy::kEntropyBounded, "entropy_bounded"},
    {Strategy::kThreshold, "threshold"},
    {Strategy::kFactor, "factor"},
}};

std::vector<int64_t> masked_positions(const std::vector<bool>& masked) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < masked.size(); ++i) {
    if (masked[i]) positions.push_back(static_cast<int64_t>(i));
  }
  return positions;
}

/// Masked positions by falling confidence, ties to the lower position.
std::vector<int64_t> ranked(const std::vector<float>& confidence, std::vector<int64_t> positions) {
  std::stable_sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) {
    return confidence[static_cast<size_t>(a)] > confidence[static_cast<size_t>(b)];
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

size_t count_factor(double factor, const std::vector<float>& confidence,
                    const std::vector<int64_t>& order) {
  // Fast-dLLM's loop: rank i (from 0) needs confidence >= 1 - factor/(i + 2), rank 0 nothing; it
  // stops at the first that fails or at the last rank, and a stop at 0 or at the last takes one
  // more.
  const size_t last = order.size() - 1;
  size_t stop = last;
  for (size_t i = 1; i < order.size(); ++i) {
    const double needed = 1.0 - factor / static_cast<double>(i + 2);
    if (static_cast<double>(confidence[static_cast<size_t>(order[i])]) < needed) {
      stop = i;
      break;
    }
  }
  return stop == 0 || stop == last ? stop + 1 : stop;
}

/// Length of the leading run of `order` whose confidence passes.
template <typename Passes>
size_t leading(const std::vector<float>& confidence, const std::vector<int64_t>& order,
               Passes passes) {
  size_t count = 0;
  while (count < order.size() && passes(confidence[static_cast<size_t>(order[count])])) ++count;
  return count;
}

}  // namespace

Strategy parse_strategy(const std::string& name) {
  std::string known;
  for (const auto& [strategy, text] : kStrategyNames) {
    if (name == text) return strategy;
    known += known.empty() ? text : std::string(", ") + text;
  }
  throw UsageError("--strategy: expected one of " + known + ", got '" + name + "'");
}

std::string strategy_name(Strategy strategy) {
  for (const auto& [value, text] : kStrategyNames) {
    if (value == strategy) return text;
  }
  return "unknown";
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
  if (!(options.threshold >= 0.0 && options.threshold <= 1.0)) {
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
}

int64_t num_transfer_tokens(const UnmaskingOptions& options, int64_t step) {
  const int64_t base = options.block_length / options.denoising_steps;
  return base + (step < options.block_length % options.denoising_steps ? 1 : 0);
}

std::vector<int64_t> select_transfers(const UnmaskingOptions& options, int64_t step,
                                      const BlockPrediction& prediction,
                                      const std::vector<bool>& masked) {
  std::vector<int64_t> order = masked_positions(masked);
  if (order.empty()) return order;
  const size_t due =
      std::min(static_cast<size_t>(num_transfer_tokens(options, step)), order.size());
  const auto& confidence = prediction.confidence;
  const float threshold = static_cast<float>(options.threshold);
  size_t count = 0;
  switch (options.strategy) {
    case Strategy::kSequential: {
      // n consecutive positions from the first mask; a hole in the run is not overwritten.
      const int64_t end = order.front() + num_transfer_tokens(options, step);
      count = static_cast<size_t>(
          std::count_if(order.begin(), order.end(), [&](int64_t p) { return p < end; }));
      break;
    }
    case Strategy::kLowConfidenceStatic:
      order = ranked(confidence, std::move(order));
      count = due;
      break;
    case Strategy::kLowConfidenceDynamic:
      order = ranked(confidence, std::move(order));
      count = std::max(due, leading(confidence, order, [&](float c) { return c > threshold; }));
      break;
    case Strategy::kEntropyBounded:
      count = count_entropy_bounded(options, prediction, order);
      break;
    case Strategy::kThreshold:
      order = ranked(confidence, std::move(order));
      count = leading(confidence, order, [&](float c) { return c >= threshold; });
      break;
    case Strategy::kFactor:
      order = ranked(confidence, std::move(order));
      count = count_factor(options.factor, confidence, order);
      break;
  }
  order.resize(std::max<size_t>(count, 1));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace blockscope
