// The table of decoding strategies. Each entry is in its strategy's own file; strategy_table.cpp
// lists them. docs/strategies.md has the formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "probe/choices/choice.h"
#include "probe/strategies/block_edit.h"
#include "probe/strategies/unmasking.h"

namespace blockscope {

/// What a run takes if nobody names a strategy.
inline constexpr const char* kMaskStrategy = "low_confidence_static";
inline constexpr const char* kCanvasStrategy = "canvas";  ///< for canvases of random tokens
inline constexpr double kNoBound = std::numeric_limits<double>::infinity();

/// One sequence's block while a strategy chooses from it.
struct StrategyStep {
  const UnmaskingOptions& options;
  const BlockPrediction& prediction;
  const std::vector<bool>& masked;  ///< [B]
  std::vector<double> score;        ///< [B] value to rank by, times the certainty density
  std::vector<int64_t> order;       ///< the masked positions, ascending; at least one
  int64_t step = 0;                 ///< of the block, from 0
  int64_t quota = 0;                ///< number of positions due by the schedule
  std::size_t due = 0;              ///< the quota, but at most the number of masked positions

  /// The threshold, rounded to float32 like the scores.
  double threshold() const { return static_cast<float>(options.threshold); }
  /// Sorts `order` by falling score; ties go to the lower position.
  void rank();
  /// The `count` positions with the best scores.
  std::vector<int64_t> best(std::size_t count);
  std::vector<int64_t> first(std::size_t count);  ///< the first `count` of `order`
  /// All positions with a score above the threshold, but at least the best `due` ones.
  std::vector<int64_t> above_or_due();
};

/// The run that a strategy must fit.
struct StrategySite {
  bool bidirectional = false;
  bool canvas = false;        ///< undecided positions hold random tokens
  bool logit_shift = false;   ///< the model has a token shift
  bool keeps_nothing = true;  ///< the cache keeps nothing of earlier passes
  bool edit_tokens = false;   ///< the checkpoint names its tokens DELETE and SPLIT
  std::string cache;          ///< its name, for messages
};

struct StrategyEntry : Choice<UnmaskingOptions> {
  bool entropy = false;        ///< needs BlockPrediction::entropy
  bool distributions = false;  ///< needs a float64 softmax; its confidence is the score
  bool remembers = false;      ///< remembers distributions from step to step (KlassMemory)
  bool plugin = false;         ///< added by add_strategy()
  bool second_look = false;    ///< takes tokens back after a second look (shadow_block.h)
  bool canvas = false;         ///< for canvases of random tokens, and no other model (canvas.h)
  int64_t usual_steps = 0;     ///< steps of a block by default, more or fewer than its length; 0:
                               ///< the block length, which is also the most
  int64_t step_limit = 0;     ///< a block goes on past its schedule, but not past this step; 0: the
                              ///< options bound its steps (most_steps)
  bool moves_tokens = false;  ///< inserts and deletes positions (EditChoice); needs EditTokens
  bool stops_within = false;  ///< a stop token ends a block at once, without the steps that remain
  /// Computes the strategy's own scores [B], in float32. `by_place`: weighted by the place in the
  /// block.
  std::function<std::vector<float>(const UnmaskingOptions&, const std::vector<int64_t>& token,
                                   const std::vector<float>& confidence, bool by_place)>
      answer_scores;
  /// Returns the positions to transfer, in any order.
  std::function<std::vector<int64_t>(StrategyStep&)> select;
  /// For strategies that also edit tokens: the whole decision of a step, and when the block ends.
  /// Empty: the strategy only fills masks, by `select`.
  std::function<EditChoice(EditStep&)> edit;
  /// Throws UsageError for options that contradict each other.
  std::function<void(const UnmaskingOptions&)> check = [](const auto&) {};
  /// Why the strategy can't be used in this run, with a hint; empty: it can.
  std::function<std::string(const StrategySite&)> refuses = [](const auto&) {
    return std::string();
  };
  /// The words that strategy_text adds to the name: ", KL below 0.01 for 2 steps".
  std::function<std::string(const UnmaskingOptions&)> text = [](const auto&) {
    return std::string();
  };
};

// Options that several strategies share.
ChoiceOption<UnmaskingOptions> threshold_option(const char* meaning);
ChoiceOption<UnmaskingOptions> rank_by_option();
ChoiceOption<UnmaskingOptions> density_option();
ChoiceOption<UnmaskingOptions> quota_option();
/// Why a strategy that edits tokens can't be used in this run (StrategyEntry::refuses).
std::string refuse_edits(const StrategySite& site);

/// The built-in strategies, then those that plugins added.
const std::vector<StrategyEntry>& strategy_table();
/// Adds a plugin's strategy, as add_policy() does.
void add_strategy(StrategyEntry entry);
/// The entry of the strategy that the options name. Throws UsageError for an unknown strategy.
const StrategyEntry& strategy_entry(const UnmaskingOptions& options);

/// Reads "klass,kl_threshold=0.01", with the defaults of that strategy. The caller sets block
/// length and steps. Throws UsageError: an unknown name or option, a value out of range, a missing
/// one.
UnmaskingOptions read_strategy(std::string_view text);

/// All options of all strategies by their keys, as a trace records them.
nlohmann::json strategy_json(const UnmaskingOptions& options);
/// A text for people: "klass, KL below 0.01 for 2 steps".
std::string strategy_text(const UnmaskingOptions& options);

/// "at most 8 steps a block", or "8 scheduled steps a block, at most 25".
std::string steps_text(const UnmaskingOptions& options);

/// Throws UsageError for a strategy that does not fit this run.
void check_strategy_fits(const UnmaskingOptions& options, const StrategySite& site);

}  // namespace blockscope
