// Strategies that keep to a schedule or compare scores with a threshold. Sources: SDAR
// `generate.py:block_diffusion_generate` (sequential, low_confidence_static,
// low_confidence_dynamic), dLLM-RL `scheduler.py:postprocess` (entropy_bounded), Fast-dLLM
// `llada/generate.py` (threshold, factor), d2Cache `generation/ar.py` (prefix_ordered).
#include <algorithm>
#include <utility>

#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

StrategyEntry ranked_entry(ChoiceFacts facts) {
  StrategyEntry entry;
  static_cast<ChoiceFacts&>(entry) = std::move(facts);
  entry.options = {rank_by_option(), density_option()};
  return entry;
}

/// Length of the leading run of `order` whose score passes.
template <typename Passes>
size_t leading(const StrategyStep& step, Passes passes) {
  size_t count = 0;
  while (count < step.order.size() && passes(step.score[static_cast<size_t>(step.order[count])])) {
    ++count;
  }
  return count;
}

/// Length of the run of consecutive numbers at the start of `positions`, which is ascending.
size_t unbroken(const std::vector<int64_t>& positions) {
  size_t count = 1;
  while (count < positions.size() && positions[count] == positions[count - 1] + 1) ++count;
  return count;
}

size_t count_entropy_bounded(StrategyStep& step) {
  const std::vector<float>& entropy = step.prediction.entropy;
  std::stable_sort(step.order.begin(), step.order.end(), [&](int64_t a, int64_t b) {
    return entropy[static_cast<size_t>(a)] < entropy[static_cast<size_t>(b)];
  });
  size_t count = 0;
  double sum = 0.0;
  for (const int64_t position : step.order) {
    sum += static_cast<double>(entropy[static_cast<size_t>(position)]);
    if (!(static_cast<float>(sum) < static_cast<float>(step.options.eb_threshold))) break;
    ++count;
  }
  return std::clamp<size_t>(count, 1, step.order.size());
}

size_t count_factor(double factor, const std::vector<double>& score,
                    const std::vector<int64_t>& order) {
  // Fast-dLLM's loop: rank i (from 0) needs a score >= 1 - factor/(i + 2); rank 0 needs none. The
  // loop stops at the first rank that fails, or at the last rank. A stop at rank 0 or at the last
  // rank takes one position more.
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

}  // namespace

StrategyEntry sequential_entry() {
  StrategyEntry entry;
  entry.name = entry.example = "sequential";
  entry.meaning = "the first masked positions of the block";
  entry.source = "SDAR, generate.py:block_diffusion_generate";
  entry.options = {quota_option()};
  entry.select = [](StrategyStep& step) {
    // n consecutive positions from the first mask on; decided ones among them are not overwritten.
    const int64_t end = step.order.front() + step.quota;
    return step.first(static_cast<size_t>(
        std::count_if(step.order.begin(), step.order.end(), [&](int64_t p) { return p < end; })));
  };
  return entry;
}

StrategyEntry low_confidence_static_entry() {
  StrategyEntry entry = ranked_entry({"low_confidence_static", "the best positions by the schedule",
                                      "SDAR, generate.py:block_diffusion_generate",
                                      "low_confidence_static,rank_by=margin"});
  entry.options.push_back(quota_option());
  entry.select = [](StrategyStep& step) { return step.best(step.due); };
  return entry;
}

StrategyEntry low_confidence_dynamic_entry() {
  StrategyEntry entry = ranked_entry(
      {"low_confidence_dynamic", "all positions above the threshold, but at least the quota",
       "SDAR, generate.py:block_diffusion_generate", "low_confidence_dynamic,threshold=0.9"});
  entry.options.push_back(threshold_option("score that a position must be above"));
  entry.options.push_back(quota_option());
  entry.select = [](StrategyStep& step) { return step.above_or_due(); };
  return entry;
}

StrategyEntry entropy_bounded_entry() {
  StrategyEntry entry;
  entry.name = "entropy_bounded";
  entry.example = "entropy_bounded,eb_threshold=0.35";
  entry.meaning = "the positions of lowest entropy, while their sum stays below a bound";
  entry.source = "dLLM-RL, scheduler.py:postprocess";
  entry.options = {real_option("eb_threshold", &UnmaskingOptions::eb_threshold, {0.0, kNoBound},
                               "largest sum of entropies, in nats")};
  entry.entropy = true;
  entry.select = [](StrategyStep& step) {
    const size_t count = count_entropy_bounded(step);
    return step.first(count);
  };
  return entry;
}

StrategyEntry threshold_entry() {
  StrategyEntry entry = ranked_entry({"threshold", "all positions at or above the threshold",
                                      "Fast-dLLM, llada/generate.py", "threshold,threshold=0.9"});
  entry.options.push_back(threshold_option("score that a position must reach"));
  entry.options.push_back(
      word_option("quota", &UnmaskingOptions::quota, kQuotaWords,
                  "carry: at most the quota, and unused quota goes to the next step; even: no "
                  "schedule",
                  {Quota::kLinear}));
  entry.select = [](StrategyStep& step) {
    step.rank();
    size_t count = leading(step, [&](double s) { return s >= step.threshold(); });
    if (step.options.quota == Quota::kCarry) count = std::min(count, step.due);
    return step.first(std::max<size_t>(count, 1));
  };
  return entry;
}

StrategyEntry factor_entry() {
  StrategyEntry entry = ranked_entry(
      {"factor", "as many positions as their scores allow for that number",
       "Fast-dLLM, llada/generate.py:get_transfer_index_dynamic", "factor,factor=1.5"});
  entry.options.push_back(real_option("factor", &UnmaskingOptions::factor, {0.0, kNoBound, true},
                                      "f: rank i needs a score of 1 - f / (i + 1)"));
  entry.select = [](StrategyStep& step) {
    step.rank();
    return step.first(count_factor(step.options.factor, step.score, step.order));
  };
  return entry;
}

StrategyEntry prefix_ordered_entry() {
  StrategyEntry entry = ranked_entry(
      {"prefix_ordered", "positions of the block's first run of masks that reach the threshold",
       "d2Cache, generation/ar.py", "prefix_ordered,threshold=0.9"});
  entry.options.push_back(threshold_option("score that a position must reach"));
  entry.options.push_back(quota_option());
  entry.select = [](StrategyStep& step) {
    step.order.resize(unbroken(step.order));
    const size_t count = leading(step, [&](double s) { return s >= step.threshold(); });
    return step.first(std::min(std::max(step.due, count), step.order.size()));
  };
  return entry;
}

}  // namespace blockscope
