// The metrics that the panels offer, and the data of their pictures made from a MetricResult: a
// cell or a curve per query head, a curve per set size, the distribution of union sizes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "analysis/results/metric_result.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

struct PanelMetric {
  const char* label;   ///< for people
  const char* metric;  ///< name in analysis/metrics/metrics.h
  const char* array;   ///< array of the MetricResult with layers, heads and steps
  const char* unit;
  const char* level;  ///< least --record level
  /// The shown element of other axes: the largest "k", the "tau" given here, the first "estimator".
  double tau = 0.0;
  /// The array of the mean over all steps; nullptr: the mean of `array`.
  const char* by_head = nullptr;
};

inline constexpr std::array<PanelMetric, 16> kPanelMetrics = {{
    {"similarity of A_out", "similarity", "similarity_external", "cosine", "summary"},
    {"similarity of A_in", "similarity", "similarity_internal", "cosine", "summary"},
    {"external mass", "external_mass", "external_mass", "share", "summary"},
    {"recall of step 1's set", "recall", "recall", "share", "sets"},
    {"union size", "union_size", "union_size", "|union| / k", "sets"},
    {"reuse error, tau 2", "reuse_error", "relative_l2", "relative L2", "summary", 2.0,
     "relative_l2_head"},
    {"EstAcc of step 1", "est_acc", "est_acc", "share", "full"},
    {"query gap to step 1", "query_statistics", "query_gap", "relative L2", "summary"},
    {"similarity of queries", "similarity_states", "similarity_query", "cosine", "outputs"},
    {"similarity of keys", "similarity_states", "similarity_key", "cosine", "outputs"},
    {"similarity of values", "similarity_states", "similarity_value", "cosine", "outputs"},
    {"similarity of hidden", "similarity_states", "similarity_hidden", "cosine", "outputs"},
    {"block accuracy", "selection", "block_accuracy", "share", "sets"},
    {"token accuracy", "selection", "token_accuracy", "share", "full"},
    {"probability read", "selection", "covered", "share", "summary"},
    {"output error", "selection", "output_error", "relative L2", "summary"},
}};
inline constexpr std::size_t kSimilarityExternal = 0;
inline constexpr std::size_t kSimilarityInternal = 1;
inline constexpr std::size_t kRecall = 3;
inline constexpr std::size_t kUnionSize = 4;

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
