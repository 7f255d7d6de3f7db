#include "analysis/metrics/estimation_accuracy.h"

#include <algorithm>

#include "analysis/pass/exact_values.h"

namespace blockscope {

Needs EstimationAccuracyMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  require_field(trace, Field::set_topk_token, "est_acc");
  exact_fields(trace);
  if (counters_.empty()) {
    shape_ = shape;
    counters_.resize(shape.layers.size());
    for (std::size_t e = 0; e < kEstimators.size(); ++e) {
      accuracy_[e] = StepGrid(shape.layers.size(), shape.kv_heads.size());
      later_[e].resize(shape.layers.size());
    }
    left_out_ = LayerCounts(shape.layers.size());
  }
  path_ = trace.info().path;
  return {{Field::set_topk, Field::set_topk_token}, false, true, {}};
}

void EstimationAccuracyMetric::add(const StepView& step) {
  const std::size_t layer = step.layer();
  if (shape_.keys_at(layer, step.now().context_length) <= shape_.set_size) {
    return left_out_.row(layer, "rows with N <= k");
  }
  if (step.now(Field::set_topk).empty() || step.now(Field::set_topk_token).empty()) {
    return left_out_.row(layer, "steps without sets");
  }
  if (step.first() == nullptr || step.first(Field::set_topk).empty()) {
    left_out_.row(layer, kBehindGap);
  }
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(layer); ++kv_head) {
    try {
      add_head(step, kv_head);
    } catch (const Error& error) {
      throw CorruptTrace(path_ + ":/sets/topk: row " + std::to_string(step.now().row) +
                         ", layer slot " + std::to_string(layer) + ", KV head slot " +
                         std::to_string(kv_head) + ": " + error.what());
    }
  }
}

void EstimationAccuracyMetric::add_head(const StepView& step, std::size_t kv_head) {
  const std::size_t layer = step.layer();
  const auto k = static_cast<std::size_t>(shape_.set_size);
  const auto block = static_cast<std::size_t>(shape_.block_length);
  const auto now = step.now(Field::set_topk).ints().subspan(kv_head * k, k);
  const ArrayView first_view = step.first() == nullptr ? ArrayView{} : step.first(Field::set_topk);
  const auto first = first_view ? first_view.ints().subspan(kv_head * k, k) : now;
  if (set_length(now) < k || set_length(first) < k) {
    return left_out_.values(layer, "sets with fewer than k members although N > k");
  }
  OverlapCounter& counter = counters_[layer];
  counter.assign(now, first);
  OverlapCounter::Counts total;
  std::int64_t tokens = 0;
  const auto sets = step.now(Field::set_topk_token).ints().subspan(kv_head * block * k, block * k);
  for (std::size_t i = 0; i < block; ++i) {
    if (step.valid()[i] == 0) continue;
    const auto set = sets.subspan(i * k, k);
    if (set.back() < 0) {
      left_out_.values(layer, "sets with fewer than k members although N > k");
      continue;
    }
    const OverlapCounter::Counts counts = counter.count(set);
    total.a += counts.a;
    total.b += counts.b;
    ++tokens;
  }
  if (tokens == 0) return;
  const double divisor = static_cast<double>(tokens) * static_cast<double>(k);
  const std::array values{static_cast<double>(total.a) / divisor,
                          static_cast<double>(total.b) / divisor};
  for (std::size_t e = 0; e < kEstimators.size(); ++e) {
    if (e == 1 && !first_view) break;
    accuracy_[e].add(layer, kv_head, step.now().step, values[e], tokens);
    if (first_view && step.now().step > 1) later_[e][layer].add(values[e], tokens);
  }
}

ResultArray EstimationAccuracyMetric::by_step() const {
  ResultArray array;
  array.name = "est_acc";
  array.unit = "share";
  array.description = "share of a token's top-k set that the block's set contains";
  ResultAxis estimators{"estimator", {}, {kEstimators.begin(), kEstimators.end()}};
  array.axes = {estimators, shape_.layer_axis(), shape_.kv_head_axis(), accuracy_[0].step_axis()};
  for (const StepGrid& grid : accuracy_) {
    for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
      for (std::size_t kv_head = 0; kv_head < shape_.kv_heads.size(); ++kv_head) {
        grid.append_steps(array, layer, kv_head, 1, accuracy_[0].num_steps());
      }
    }
  }
  return array;
}

ResultArray EstimationAccuracyMetric::later() const {
  ResultArray array;
  array.name = "est_acc_later";
  array.unit = "share";
  array.description = "the same share over steps t > 1, where the two estimators differ";
  array.axes = {{"estimator", {}, {kEstimators.begin(), kEstimators.end()}}, shape_.layer_axis()};
  for (const std::vector<RunningMean>& layers : later_) {
    for (const RunningMean& mean : layers) {
      array.values.push_back(mean.mean());
      array.terms.push_back(mean.terms());
    }
  }
  return array;
}

MetricResult EstimationAccuracyMetric::finish() {
  MetricResult result;
  result.metric = "est_acc";
  result.title = "Estimation accuracy of a block's set";
  result.formula = "EstAcc = |S n S*_token| / k";
  result.source = "MAGE, eq. 1, Fig. 3";
  result.computed_from = "/sets/topk, /sets/topk_token";
  result.arrays = {by_step(), later()};
  left_out_.add_to(result.left_out);
  return result;
}

}  // namespace blockscope
