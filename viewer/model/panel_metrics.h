// The metrics that the panels offer, and the data of their pictures made from a MetricResult: a
// cell or a curve per query head, a curve per set size, the distribution of union sizes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/results/metric_result.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// A MetricView with the name and the level of its metric (analysis/metrics/metrics.h).
struct PanelMetric {
  std::string metric;
  std::string level;  ///< lowest --record level
  MetricView view;
  std::string name;  ///< for --show: that of the array, and of single rows ("lse_change")
};

/// The views of all metrics, then those of add_panel_metrics(); the panels know them by their
/// index.
const std::vector<PanelMetric>& panel_metrics();
/// Adds a view for each array with a layer axis of results that came from a file. Call it before
/// the first frame. Throws Error if no array has that axis, and for the name of a built-in metric.
void add_panel_metrics(std::vector<MetricResult> results, const std::string& file);
/// The result of a file; null: the metric is a built-in one.
const MetricResult* result_of_file(const std::string& metric);
/// Index of the view of this name. Throws std::out_of_range if there is none.
std::size_t panel_metric(std::string_view name);

/// Why a trace can't have the metric, for the user: its level, or sets of a sparse policy without
/// those of exact attention. nullopt if it can.
std::optional<std::string> lacks(const TraceMeta& meta, const PanelMetric& choice);

/// Means [layer], or [layer, head or kv_head]. Has no axis if the result lacks the array.
ResultArray means_by_head(const MetricResult& result, const PanelMetric& choice);
/// Like means_by_head, with steps as the last axis.
ResultArray means_by_step(const MetricResult& result, const PanelMetric& choice);

/// Means [layers, heads] for the recorded query heads of a trace. A value of a KV head is repeated
/// for each head of its group, a value of a layer for each of its heads. NaN if `means` has no such
/// cell.
SimilarityMatrix head_grid(const ResultArray& means, const TraceMeta& meta);
SimilarityMatrix head_grid(const MetricResult& result, const PanelMetric& choice,
                           const TraceMeta& meta);

/// Values over steps; steps without a value are left out.
struct HeadCurve {
  std::vector<double> steps, values;
  std::int64_t terms = 0;
};

HeadCurve head_curve(const ResultArray& means_by_step, const TraceMeta& meta, std::size_t layer,
                     std::size_t head);

/// A curve for each recorded query head.
struct HeadCurves {
  std::size_t heads = 0;
  std::vector<HeadCurve> curves;  ///< [layers, heads]
  const HeadCurve& at(std::size_t layer, std::size_t head) const {
    return curves.at(layer * heads + head);
  }
};
HeadCurves head_curves(const ResultArray& means_by_step, const TraceMeta& meta);

/// A layer and query head slot, for pictures of one head.
struct HeadSlot {
  std::size_t layer = 0, head = 0;
  bool operator==(const HeadSlot&) const = default;
};

/// Recall over steps for each set size k: one head's, or the mean over all heads.
struct SizeCurve {
  std::int64_t size = 0;
  HeadCurve curve;
};
std::vector<SizeCurve> recall_by_size(const MetricResult& result, const TraceMeta& meta,
                                      const std::optional<HeadSlot>& head);

/// Distribution of |union| / k over rows and KV heads, for all steps and for the blocks' first
/// steps.
struct UnionDistribution {
  std::vector<double> centres;     ///< of the bins
  double width = 0.0;              ///< of a bin
  std::vector<double> all, first;  ///< share of the rows in each bin
  double terms = 0, first_terms = 0;
};
UnionDistribution union_distribution(const MetricResult& result,
                                     const std::optional<std::size_t>& layer);

/// layer, head (the model's numbers), value.
CsvTable heads_table(const MatrixPayload& grid, const PanelMetric& choice, const TraceMeta& meta);
/// layer, head, step, value, terms; for one layer.
CsvTable curves_table(const ResultArray& means, const PanelMetric& choice, const TraceMeta& meta,
                      std::size_t layer);
/// layer, head, A_out, A_in; for every head.
CsvTable sides_table(const SimilarityMatrix& external, const SimilarityMatrix& internal,
                     const TraceMeta& meta);
/// k, step, recall.
CsvTable recall_table(const std::vector<SizeCurve>& curves);
/// |union| / k at the bin's centre, share of all steps, share of first steps.
CsvTable unions_table(const UnionDistribution& unions);

}  // namespace blockscope
