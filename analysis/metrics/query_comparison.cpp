#include "analysis/metrics/query_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/metrics/query_statistics.h"
#include "analysis/pass/row_pairs.h"

namespace blockscope {
namespace {

void require_equal(const char* name, const std::vector<std::int64_t>& a,
                   const std::vector<std::int64_t>& b) {
  if (a == b) return;
  const auto text = [](const std::vector<std::int64_t>& values) {
    std::string result;
    for (const std::int64_t value : values) {
      result += (result.empty() ? "" : ",") + std::to_string(value);
    }
    return "[" + result + "]";
  };
  throw UsageError(std::string("query statistics of two traces: ") + name + " is " + text(a) +
                   " in the trained model's trace and " + text(b) + " in the backbone's. HINT: " +
                   "capture both with the same filters, --block-length and --set-size");
}

void check_shapes(const TraceShape& a, const TraceShape& b) {
  require_equal("num_layers", {a.num_layers}, {b.num_layers});
  require_equal("num_heads, num_kv_heads", {a.num_heads, a.num_kv_heads},
                {b.num_heads, b.num_kv_heads});
  require_equal("KV heads of each layer", a.layer_kv_heads, b.layer_kv_heads);
  require_equal("window of each layer", a.layer_window, b.layer_window);
  require_equal("layers", a.layers, b.layers);
  require_equal("heads", a.heads, b.heads);
  require_equal("kv_heads", a.kv_heads, b.kv_heads);
  require_equal("block_length", {a.block_length}, {b.block_length});
  require_equal("set_size", {a.set_size}, {b.set_size});
}

bool has_arrays(const TraceGroup& group) {
  for (std::size_t t = 0; t < group.size(); ++t) {
    const TraceReader& trace = group.trace(t);
    if (!trace.has(Field::hidden) || !trace.has(Field::query)) return false;
  }
  return true;
}

MetricResult statistics_of(const TraceGroup& group, const MetricOptions& options,
                           const PassOptions& pass, RowMask rows) {
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(std::make_unique<QueryStatisticsMetric>(options, std::move(rows)));
  return run_pass(group, metrics, pass).at(0);
}

ResultAxis model_axis() { return {"model", {}, {"trained", "backbone"}}; }

/// Joins two arrays [step or layer] along a model axis. If only one side has a step, the other side
/// gets NaN without terms.
ResultArray side_by_side(ResultArray a, ResultArray b) {
  const std::size_t size = std::max(a.values.size(), b.values.size());
  for (ResultArray* array : {&a, &b}) {
    array->values.resize(size, std::numeric_limits<double>::quiet_NaN());
    array->terms.resize(size, 0);
  }
  ResultArray both = a;
  both.axes.front() = a.axes.front().size() == size ? a.axes.front() : b.axes.front();
  both.axes.insert(both.axes.begin(), model_axis());
  both.values.insert(both.values.end(), b.values.begin(), b.values.end());
  both.terms.insert(both.terms.end(), b.terms.begin(), b.terms.end());
  return both;
}

ResultArray stages_by_model(const ResultArray& a, const ResultArray& b) {
  ResultArray both = a;
  both.axes.push_back(model_axis());
  both.values.clear();
  both.terms.clear();
  for (std::size_t i = 0; i < kNumStages; ++i) {
    for (const ResultArray* array : {&a, &b}) {
      both.values.push_back(array->values.at(i));
      both.terms.push_back(array->terms.at(i));
    }
  }
  return both;
}

ResultArray relative_change(const ResultArray& trained, const ResultArray& backbone) {
  ResultArray change;
  change.name = "relative_change";
  change.unit = "share";
  change.description = "(trained - backbone) / |backbone|";
  change.axes = trained.axes;
  for (std::size_t i = 0; i < kNumStages; ++i) {
    change.values.push_back((trained.values.at(i) - backbone.values.at(i)) /
                            std::abs(backbone.values.at(i)));
  }
  return change;
}

}  // namespace

MetricResult compare_query_statistics(const TraceGroup& trained, const TraceGroup& backbone,
                                      const MetricOptions& options, const PassOptions& pass) {
  check_shapes(trained.shape(), backbone.shape());
  RowPairs pairs = pair_rows(trained, backbone);
  MetricOptions same = options;
  same.from_summary = options.from_summary || !has_arrays(trained) || !has_arrays(backbone);
  const MetricResult a = statistics_of(trained, same, pass, std::move(pairs.first));
  const MetricResult b = statistics_of(backbone, same, pass, std::move(pairs.second));
  MetricResult result = a;
  result.metric = "query_comparison";
  result.title = "Query statistics, trained model and its backbone";
  result.arrays = {stages_by_model(a.array("stages"), b.array("stages")),
                   relative_change(a.array("stages"), b.array("stages")),
                   side_by_side(mean_over_others(a.array("kl"), {"step"}),
                                mean_over_others(b.array("kl"), {"step"}))};
  for (const char* name : {"hidden_gap", "query_gap", "query_block_gap", "recall"}) {
    result.arrays.push_back(side_by_side(mean_over_others(a.array(name), {"layer"}),
                                         mean_over_others(b.array(name), {"layer"})));
  }
  result.left_out.clear();
  for (const auto& [reason, count] : a.left_out) result.left_out["trained: " + reason] = count;
  for (const auto& [reason, count] : b.left_out) result.left_out["backbone: " + reason] = count;
  if (pairs.only_first > 0) result.left_out["trained: steps without a partner"] = pairs.only_first;
  if (pairs.only_second > 0) {
    result.left_out["backbone: steps without a partner"] = pairs.only_second;
  }
  return result;
}

}  // namespace blockscope
