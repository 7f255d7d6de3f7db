// The report's figures, one file each: from results to a drawing, its caption and its numbers. None
// of them computes a metric; what they take together, they take together with mean_over_others().
// Every figure skips what its result has no terms for, and says so.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/figures/report_figure.h"
#include "analysis/pass/block_index.h"
#include "analysis/results/metric_result.h"
#include "decode_record/interchange/reuse_file.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// FlashBlock (arXiv 2602.05305), Fig. 1: token x token similarity of adjacent steps, A_out above
/// A_in, one column per pair of steps.
struct HeatmapChoice {
  std::int64_t layer_slot = 0;            ///< recorded slot
  std::optional<std::int64_t> head_slot;  ///< unset: heads concatenated, as in the paper
  std::size_t pairs = 6;                  ///< at most; spread evenly over the block's steps
};
/// nullopt when the block has no two adjacent recorded steps.
std::optional<ReportFigure> token_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                           const HeatmapChoice& choice);
/// Every step of the block against every other, A_out beside A_in.
std::optional<ReportFigure> step_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                          const HeatmapChoice& choice);

/// FlashBlock, Fig. 5: a plot per layer, per head A_in (orange) beside A_out (blue). `result`:
/// metric `similarity`. Several figures when there are more than 12 layers.
std::vector<ReportFigure> head_similarity(const MetricResult& result);
/// The same over the steps of a block, all layers and heads together.
std::optional<ReportFigure> similarity_over_steps(const MetricResult& result);

/// Share of the attention that goes to the prefix, layer x head. `result`: `external_mass`.
std::optional<ReportFigure> external_mass_map(const MetricResult& result);

/// One-step reuse error per layer, a line per tau. `result`: `reuse_error`.
std::optional<ReportFigure> reuse_error_by_layer(const MetricResult& result);
/// What gamma saves and costs, a line per tau.
std::optional<ReportFigure> gamma_curves(const std::vector<ReuseCurve>& curves);

/// MAGE (Fig. 2): recall of step 1's set over the steps, a line per k. `result`: `recall`.
std::optional<ReportFigure> recall_over_steps(const MetricResult& result);
/// MAGE, Fig. 1a: how many times k the union of the tokens' sets is. `result`: `union_size`.
std::optional<ReportFigure> union_sizes(const MetricResult& result);
/// MAGE, Fig. 3: estimation accuracy of sets shared by a block. `result`: `est_acc`.
std::optional<ReportFigure> estimation_accuracy(const MetricResult& result);
/// MAGE, Table 2. `result`: `query_statistics`, or `query_comparison` with the backbone's rows.
std::optional<ReportTable> query_stages(const MetricResult& result);

/// What a sparse policy's sets held at every step, and its error. `result`: `selection`.
std::optional<ReportFigure> selection_over_steps(const MetricResult& result);
/// The same per layer.
std::optional<ReportTable> selection_by_layer(const MetricResult& result);

/// What a cache computed, layer by layer and step by step, and how stale it was. `result`: `cache`.
std::optional<ReportTable> cache_means(const MetricResult& result);
std::optional<ReportFigure> cache_rows_map(const MetricResult& result);
std::optional<ReportFigure> cache_rows_over_steps(const MetricResult& result);
std::optional<ReportFigure> cache_staleness(const MetricResult& result);
/// Fast-dLLM (arXiv 2505.22618), Fig. 3: every step of the block against every other, keys beside
/// values. Needs level full.
std::optional<ReportFigure> kv_step_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                             const HeatmapChoice& choice);

/// How routers use their experts, layer by layer and from step to step. `result`: `router`.
std::optional<ReportFigure> router_usage_map(const MetricResult& result);
std::optional<ReportTable> router_by_layer(const MetricResult& result);
std::optional<ReportFigure> router_agreement(const MetricResult& result);

/// What of a draft its target accepted, and what other block lengths would be worth. `result`:
/// `draft`.
std::optional<ReportTable> draft_means(const MetricResult& result);
std::optional<ReportFigure> draft_lengths(const MetricResult& result);
std::optional<ReportFigure> draft_positions(const MetricResult& result);
/// Acceptance by entropies, external mass and depth, and what more candidates would have held.
std::optional<ReportFigure> draft_reasons(const MetricResult& result);
/// Needs /draft/cost.
std::optional<ReportFigure> draft_speedup(const MetricResult& result);

/// How the run decoded. `result`: `decoding`.
std::optional<ReportTable> decoding_means(const MetricResult& result);
std::optional<ReportFigure> decoding_over_steps(const MetricResult& result);
std::optional<ReportFigure> settled_map(const MetricResult& result);

}  // namespace blockscope
