#include "probe/strategies/strategy_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/error.h"

namespace blockscope {

// Each is defined in its strategy's file.
StrategyEntry sequential_entry();
StrategyEntry low_confidence_static_entry();
StrategyEntry low_confidence_dynamic_entry();
StrategyEntry entropy_bounded_entry();
StrategyEntry threshold_entry();
StrategyEntry factor_entry();
StrategyEntry prefix_ordered_entry();
StrategyEntry klass_entry();
StrategyEntry pc_sampler_entry();
StrategyEntry wino_entry();
StrategyEntry canvas_entry();
StrategyEntry joint_threshold_entry();
StrategyEntry joint_threshold_indel_entry();

namespace {

constexpr std::string_view kKindOfStrategy = "strategy";

std::vector<StrategyEntry>& strategies() {
  static std::vector<StrategyEntry> table{sequential_entry(),
                                          low_confidence_static_entry(),
                                          low_confidence_dynamic_entry(),
                                          entropy_bounded_entry(),
                                          threshold_entry(),
                                          factor_entry(),
                                          prefix_ordered_entry(),
                                          klass_entry(),
                                          pc_sampler_entry(),
                                          wino_entry(),
                                          canvas_entry(),
                                          joint_threshold_entry(),
                                          joint_threshold_indel_entry()};
  return table;
}

/// For negative entropies the threshold is in nats, else a probability.
void check_threshold(const StrategyEntry& entry, const UnmaskingOptions& options) {
  if (!entry.heeds("threshold")) return;
  const bool entropies = entry.heeds("rank_by") && options.rank_by == RankBy::kNegativeEntropy;
  if (entropies && options.threshold > 0.0) {
    throw UsageError(fmt::format(
        "threshold: expected a negative entropy in nats, at most 0, got {}. HINT: "
        "rank_by=negative_entropy compares it with sum p log p: -0.5 takes positions with an "
        "entropy below 0.5 nats",
        options.threshold));
  }
  if (!entropies && options.threshold < 0.0) {
    throw UsageError(
        fmt::format("threshold: expected a probability in [0, 1], got {}", options.threshold));
  }
}

}  // namespace

const std::vector<StrategyEntry>& strategy_table() { return strategies(); }

void add_strategy(StrategyEntry entry) {
  add_plugin(kKindOfStrategy, strategies(), std::move(entry));
}

const StrategyEntry& strategy_entry(const UnmaskingOptions& options) {
  return entry_named(kKindOfStrategy, strategy_table(), options.strategy, options.strategy);
}

ChoiceOption<UnmaskingOptions> threshold_option(const char* meaning) {
  return real_option("threshold", &UnmaskingOptions::threshold, {-kNoBound, 1.0}, meaning);
}

ChoiceOption<UnmaskingOptions> rank_by_option() {
  return word_option("rank_by", &UnmaskingOptions::rank_by, kRankByWords,
                     "score of a position: the token's probability, p1 - p2, or sum p log p in "
                     "nats");
}

ChoiceOption<UnmaskingOptions> density_option() {
  return real_option("density_sigma", &UnmaskingOptions::density_sigma, {0.0, kNoBound},
                     "scores are multiplied by the certainty density, a Gaussian of this width in "
                     "positions; 0: off");
}

ChoiceOption<UnmaskingOptions> quota_option() {
  return word_option("quota", &UnmaskingOptions::quota, kQuotaWords,
                     "tokens due at a step: a share of the block length (even), or of the masks "
                     "left (linear, Dream's)",
                     {Quota::kCarry});  // only the strategy threshold offers it
}

UnmaskingOptions read_strategy(std::string_view text) {
  UnmaskingOptions options;
  const StrategyEntry& entry = read_choice(kKindOfStrategy, strategy_table(), text, options);
  options.strategy = entry.name;
  check_choice(kKindOfStrategy, text, [&] {
    check_threshold(entry, options);
    entry.check(options);
  });
  return options;
}

void check_unmasking_options(const UnmaskingOptions& options) {
  const StrategyEntry& entry = strategy_entry(options);
  if (options.block_length < 1) {
    throw UsageError(
        fmt::format("block length: expected at least 1, got {}", options.block_length));
  }
  const bool any_number = entry.usual_steps > 0;
  if (options.denoising_steps < 1 ||
      (!any_number && options.denoising_steps > options.block_length)) {
    throw UsageError(fmt::format(
        "denoising steps: expected 1 to the block length {}, got {}. HINT: more steps than "
        "positions would leave steps without a token",
        options.block_length, options.denoising_steps));
  }
  try {
    for (const auto& option : entry.options) {
      UnmaskingOptions again = options;
      const std::string value = option.text(options);
      if (value.empty()) continue;
      try {
        option.set(again, value);
      } catch (const UsageError& error) {
        throw UsageError(option.name + ": " + error.what());
      }
    }
    check_threshold(entry, options);
    entry.check(options);
  } catch (const UsageError& error) {
    refuse_choice(kKindOfStrategy, options.strategy, error.what());
  }
}

nlohmann::json strategy_json(const UnmaskingOptions& options) {
  nlohmann::json json = {{"strategy", options.strategy}};
  for (const StrategyEntry& entry : strategy_table()) {
    if (entry.plugin && entry.name != options.strategy) continue;
    json.update(choice_json(entry, options));
  }
  json["frequencies_digest"] = options.frequencies ? options.frequencies->digest : "";
  return json;
}

std::string strategy_text(const UnmaskingOptions& options) {
  const StrategyEntry& entry = strategy_entry(options);
  std::string text = entry.name;
  if (options.rank_by != RankBy::kConfidence) text += " by " + rank_by_name(options.rank_by);
  text += entry.text(options);
  if (options.density_sigma > 0.0) {
    text += fmt::format(", density sigma {:g}", options.density_sigma);
  }
  if (options.quota != Quota::kEven) {
    text += ", " + kQuotaWords[static_cast<size_t>(options.quota)] + " quota";
  }
  return text;
}

std::string steps_text(const UnmaskingOptions& options) {
  const int64_t most = most_steps(options);
  if (most == options.denoising_steps) return fmt::format("at most {} steps a block", most);
  return fmt::format("{} scheduled steps a block, at most {}", options.denoising_steps, most);
}

void check_strategy_fits(const UnmaskingOptions& options, const StrategySite& site) {
  const StrategyEntry& entry = strategy_entry(options);
  if (entry.canvas != site.canvas) {
    throw UsageError(fmt::format(
        "strategy {}: {}. HINT: leave --strategy out for the model's own", options.strategy,
        site.canvas
            ? "fills masks, but this model's undecided positions hold random tokens"
            : "is for canvases of random tokens (DiffusionGemma), but this model has masks"));
  }
  const std::string why = entry.refuses(site);
  if (!why.empty()) throw UsageError(fmt::format("strategy {}: {}", options.strategy, why));
}

}  // namespace blockscope
