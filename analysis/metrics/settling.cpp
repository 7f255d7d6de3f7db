#include "analysis/metrics/settling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/block_decisions.h"
#include "analysis/metrics/decoding.h"
#include "analysis/metrics/left_out.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kSettlingMetric = "settling";
constexpr std::size_t kMostOrder = 4;  // k of AR-ness
constexpr std::size_t kShares = 10;

/// Predictions of one block, [steps][B], -1: none.
using Predictions = std::vector<std::vector<std::int32_t>>;

class SettlingMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    require_field(trace, Field::prediction_token, kSettlingMetric);
    require_tokens(trace, kSettlingMetric);
    trace_ = &trace;
    ordered_ = shape.block_length > 1 && !trace.info().meta.has_draft && !is_autoregressive(trace);
    block_length_ = shape.block_length;
    return {};
  }

  void add(const StepView& /*step*/) override {}

  void add_block(const BlockSteps& block) override {
    if (!ordered_) {
      ++left_out_["blocks of one position, or rounds of a draft"];
      return;
    }
    const BlockDecisions decisions = decisions_of(*trace_, block);
    Predictions predictions;
    for (const StepRef& step : block.steps) {
      predictions.push_back(trace_->read_ints(Field::prediction_token, step.row, 1));
    }
    const auto steps = static_cast<std::int64_t>(block.steps.size());
    for (std::size_t p = 0; p < decisions.token.size(); ++p) {
      if (decisions.index[p] >= 0) add_position(decisions, predictions, p, steps);
    }
    add_order(decisions);
  }

  MetricResult finish() override;

 private:
  void add_position(const BlockDecisions& decisions, const Predictions& predictions, std::size_t p,
                    std::int64_t steps);
  void add_order(const BlockDecisions& decisions);

  const TraceReader* trace_ = nullptr;
  bool ordered_ = false;
  std::int64_t block_length_ = 0;
  RunningMean settled_, decided_, flips_, at_once_;
  std::array<RunningMean, kShares> settled_by_;
  std::vector<RunningMean> agreement_;  // [step - 1]
  std::array<RunningMean, kMostOrder> local_, global_;
  LeftOut left_out_;
};

void SettlingMetric::add_position(const BlockDecisions& decisions, const Predictions& predictions,
                                  std::size_t p, std::int64_t steps) {
  const std::int64_t decided = decisions.index[p];
  std::int64_t settled = decided;
  std::int64_t flips = 0;
  std::int32_t before = -1;
  bool same = true;  // so far, from the last step back
  for (std::int64_t t = decided; t >= 0; --t) {
    const std::int32_t token = predictions[static_cast<std::size_t>(t)].at(p);
    if (token < 0 || decisions.masks[static_cast<std::size_t>(t)][p] == 0) continue;
    same = same && token == decisions.token[p];
    if (same) settled = t;
    if (before >= 0 && token != before) ++flips;
    before = token;
    const auto index = static_cast<std::size_t>(t);
    if (agreement_.size() <= index) agreement_.resize(index + 1);
    agreement_[index].add(token == decisions.token[p] ? 1.0 : 0.0);
  }
  settled_.add(static_cast<double>(settled + 1));
  decided_.add(static_cast<double>(decided + 1));
  flips_.add(static_cast<double>(flips));
  at_once_.add(settled == 0 ? 1.0 : 0.0);
  for (std::size_t i = 0; i < kShares; ++i) {
    const auto share = static_cast<std::int64_t>(i) + 1;
    const bool by_then = (settled + 1) * static_cast<std::int64_t>(kShares) <= share * steps;
    settled_by_.at(i).add(by_then ? 1.0 : 0.0);
  }
}

void SettlingMetric::add_order(const BlockDecisions& decisions) {
  std::vector<std::size_t> order;
  for (std::size_t p = 0; p < decisions.index.size(); ++p) {
    if (decisions.index[p] >= 0) order.push_back(p);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t p) { return decisions.index[p]; });
  std::size_t run = 0;  // decisions in a row, each right of the one before
  for (std::size_t i = 0; i < order.size(); ++i) {
    run = i > 0 && order[i] == order[i - 1] + 1 ? run + 1 : 1;
    const auto masks_before = std::ranges::count_if(order, [&](std::size_t p) {
      return p < order[i] && decisions.index[p] >= decisions.index[order[i]];
    });
    for (std::size_t k = 1; k <= kMostOrder; ++k) {
      // The first k decisions of a block have too few before them.
      if (i >= k) local_.at(k - 1).add(run > k ? 1.0 : 0.0);
      global_.at(k - 1).add(std::cmp_less(masks_before, k) ? 1.0 : 0.0);
    }
  }
}

template <class Means>
ResultArray array_of(const Means& means, const char* name, const char* description,
                     ResultAxis axis) {
  ResultArray array{name, "share", description, {std::move(axis)}, {}, {}};
  for (const RunningMean& mean : means) {
    array.values.push_back(mean.mean());
    array.terms.push_back(mean.terms());
  }
  return array;
}

ResultAxis from_one(const char* name, std::size_t size, double scale) {
  ResultAxis axis{name, {}, {}};
  for (std::size_t i = 1; i <= size; ++i) axis.index.push_back(static_cast<double>(i) / scale);
  return axis;
}

MetricResult SettlingMetric::finish() {
  MetricResult result;
  result.metric = kSettlingMetric;
  result.title = "Settling and order";
  result.formula = "settled = first step from which every prediction is the final token";
  result.source = "Prophet, arXiv 2508.19982; AR-ness: DiffuCoder, arXiv 2506.20639";
  result.computed_from = "/prediction/token, /frames";
  const std::array means{settled_, decided_, flips_, at_once_};
  result.arrays.push_back(
      array_of(means, "means", "means over the decided positions",
               {"quantity", {}, {"settled step", "decided step", "flips", "settled at step 1"}}));
  result.arrays.back().unit = "steps, steps, changes, share";
  result.arrays.push_back(array_of(settled_by_, "settled_by",
                                   "positions settled after this share of the block's steps",
                                   from_one("share", kShares, kShares)));
  result.arrays.push_back(array_of(agreement_, "agreement",
                                   "masks whose prediction is already the final token",
                                   from_one("step", agreement_.size(), 1.0)));
  result.arrays.push_back(array_of(
      local_, "ar_local", "decided right after the k positions on its left, in their order",
      from_one("k", kMostOrder, 1.0)));
  result.arrays.push_back(array_of(global_, "ar_global", "decided while one of the first k masks",
                                   from_one("k", kMostOrder, 1.0)));
  result.left_out = left_out_;
  return result;
}

}  // namespace

std::unique_ptr<StepMetric> make_settling_metric() { return std::make_unique<SettlingMetric>(); }

}  // namespace blockscope
