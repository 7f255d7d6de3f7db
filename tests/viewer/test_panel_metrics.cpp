// What the panels draw of a MetricResult, against the cells of its arrays.
#include "viewer/model/panel_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {
namespace {

const std::string kMetricsTrace =
    std::string(BLOCKSCOPE_SOURCE_DIR) + "/tests/data/trace_schema_1.h5";

TraceMeta meta_of_trace() { return TraceReader(kMetricsTrace).info().meta; }

MetricResult compute(const std::string& metric) {
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(metric_by_name(metric).make({}));
  return run_pass(TraceGroup({kMetricsTrace}), metrics, {}).at(0);
}

TEST(PanelMetric, EveryChoiceIsInItsResult) {
  const TraceMeta meta = meta_of_trace();
  for (const PanelMetric& choice : panel_metrics()) {
    SCOPED_TRACE(choice.view.label);
    if (choice.metric == "selection") continue;     // test_step_keys.cpp
    if (metric_by_name(choice.metric).only_with) {  // newer than the frozen trace
      ASSERT_TRUE(lacks(meta, choice));
      continue;
    }
    ASSERT_FALSE(lacks(meta, choice)) << "the frozen trace has all levels";
    const MetricResult result = compute(choice.metric);
    const ResultArray* array = result.find(choice.view.array);
    ASSERT_NE(array, nullptr);
    const SimilarityMatrix grid = head_grid(result, choice, meta);
    ASSERT_EQ(grid.values.size(), meta.layers.size() * meta.heads.size());
    const HeadCurves curves = head_curves(means_by_step(result, choice), meta);
    ASSERT_EQ(curves.curves.size(), grid.values.size());
    std::size_t with_values = 0;
    for (std::size_t i = 0; i < grid.values.size(); ++i) {
      with_values += std::isnan(grid.values[i]) ? 0U : 1U;
      EXPECT_EQ(std::isnan(grid.values[i]), curves.curves[i].steps.empty());
    }
    EXPECT_GT(with_values, 0U);
  }
}

TEST(PanelMetric, ATauThatTheTraceLacksHasNoValues) {
  const TraceMeta meta = meta_of_trace();
  const MetricResult result = compute("reuse_error");
  PanelMetric choice = panel_metrics()[panel_metric("relative_l2")];
  ASSERT_EQ(choice.metric, "reuse_error");
  choice.view.tau = 99.0;
  for (const float value : head_grid(result, choice, meta).values) EXPECT_TRUE(std::isnan(value));
  for (const HeadCurve& curve : head_curves(means_by_step(result, choice), meta).curves) {
    EXPECT_TRUE(curve.steps.empty());
  }
}

TEST(PanelMetric, RowsOfOneKindAreTheirPartOfTheArray) {
  const TraceMeta meta = meta_of_trace();
  const MetricResult result = compute("kept_pair");
  const ResultArray& array = result.array("kept_error_head");  // tau, rows, layer, head
  const std::vector<std::string> names{"kept_error_masks", "kept_error_known",
                                       "kept_error_decided"};
  const auto tau = static_cast<std::size_t>(std::ranges::find(array.axes[0].index, 2.0) -
                                            array.axes[0].index.begin());
  for (std::size_t kind = 0; kind < names.size(); ++kind) {
    const SimilarityMatrix grid =
        head_grid(result, panel_metrics()[panel_metric(names[kind])], meta);
    for (std::size_t layer = 0; layer < grid.rows; ++layer) {
      for (std::size_t head = 0; head < grid.columns; ++head) {
        const auto wanted = static_cast<float>(array.at({tau, 1 + kind, layer, head}));
        const float shown = grid.values[layer * grid.columns + head];
        EXPECT_TRUE(shown == wanted || (std::isnan(shown) && std::isnan(wanted)));
      }
    }
  }
}

TEST(PanelMetric, CurvesOfKeyValueHeadsStandAtTheirGroup) {
  const TraceMeta meta = meta_of_trace();
  const MetricResult result = compute("recall");
  const ResultArray& recall = result.array("recall");  // layer, kv_head, step, k
  const std::size_t last_k = recall.axes[3].size() - 1;
  const std::int64_t group = meta.num_heads / meta.num_kv_heads;
  const HeadCurves curves =
      head_curves(means_by_step(result, panel_metrics()[panel_metric("recall")]), meta);
  for (std::size_t layer = 0; layer < meta.layers.size(); ++layer) {
    for (std::size_t head = 0; head < meta.heads.size(); ++head) {
      const auto kv = static_cast<std::size_t>(
          std::ranges::find(meta.kv_heads, meta.heads[head] / group) - meta.kv_heads.begin());
      std::size_t shown = 0;
      const HeadCurve& curve = curves.at(layer, head);
      for (std::size_t step = 0; step < recall.axes[2].size(); ++step) {
        const double value = recall.at({layer, kv, step, last_k});
        if (std::isnan(value)) continue;
        ASSERT_LT(shown, curve.values.size());
        EXPECT_DOUBLE_EQ(curve.values[shown], value);
        EXPECT_DOUBLE_EQ(curve.steps[shown], recall.axes[2].index[step]);
        ++shown;
      }
      EXPECT_EQ(shown, curve.values.size());
    }
  }
}

TEST(PanelMetric, RecallForSeveralSizesIsTheArrayItself) {
  const TraceMeta meta = meta_of_trace();
  const MetricResult result = compute("recall");
  const ResultArray& recall = result.array("recall");
  const auto curves = recall_by_size(result, meta, HeadSlot{0, 0});
  ASSERT_EQ(curves.size(), recall.axes[3].size());
  for (std::size_t k = 0; k < curves.size(); ++k) {
    EXPECT_EQ(static_cast<double>(curves[k].size), recall.axes[3].index[k]);
    ASSERT_FALSE(curves[k].curve.values.empty());
    const auto step = static_cast<std::size_t>(curves[k].curve.steps[0]) - 1;
    EXPECT_DOUBLE_EQ(curves[k].curve.values[0], recall.at({0, 0, step, k}));
  }
  const auto together = recall_by_size(result, meta, std::nullopt);
  ASSERT_EQ(together.size(), curves.size());
  const ResultArray mean = mean_over_others(recall, {"step", "k"});
  const auto step = static_cast<std::size_t>(together[0].curve.steps.at(0)) - 1;
  EXPECT_DOUBLE_EQ(together[0].curve.values[0], mean.at({step, 0}));
}

TEST(PanelMetric, UnionSharesAddUpToOne) {
  const MetricResult result = compute("union_size");
  const ResultArray& histogram = result.array("union_histogram");
  for (const std::optional<std::size_t> layer :
       {std::optional<std::size_t>(), std::optional<std::size_t>(0)}) {
    const UnionDistribution unions = union_distribution(result, layer);
    ASSERT_EQ(unions.all.size(), histogram.axes[2].size());
    EXPECT_NEAR(std::accumulate(unions.all.begin(), unions.all.end(), 0.0), 1.0, 1e-12);
    EXPECT_NEAR(std::accumulate(unions.first.begin(), unions.first.end(), 0.0), 1.0, 1e-12);
    EXPECT_LT(unions.first_terms, unions.terms);
  }
  const UnionDistribution first = union_distribution(result, 0);
  double count = 0;
  for (std::size_t bin = 0; bin < first.all.size(); ++bin) count += histogram.at({0, 0, bin});
  EXPECT_DOUBLE_EQ(first.terms, count);
}

}  // namespace
}  // namespace blockscope
