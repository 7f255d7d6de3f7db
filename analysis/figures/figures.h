// The report's figures. Each turns results into a drawing, its caption and its numbers. No figure
// computes a metric; means over axes come from mean_over_others(). Every figure skips the parts
// that its result has no terms for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/figures/report_figure.h"
#include "analysis/pass/block_index.h"
#include "analysis/results/metric_result.h"
#include "decode_record/interchange/loop_comparison.h"
#include "decode_record/interchange/reuse_file.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// The layer, head and pairs of steps that heatmaps show.
struct HeatmapChoice {
  std::int64_t layer_slot = 0;            ///< recorded slot
  std::optional<std::int64_t> head_slot;  ///< unset: heads concatenated, as in the paper
  std::size_t pairs = 6;                  ///< at most; spread evenly over the block's steps
};
/// Two adjacent recorded steps.
struct StepPair {
  StepRef first, second;
};
/// At most `count` pairs of the block, evenly spread; those that token_heatmaps() shows.
std::vector<StepPair> shown_pairs(const BlockSteps& block, std::size_t count);

/// FlashBlock (arXiv 2602.05305), Fig. 1: token x token similarity of adjacent steps, A_out above
/// A_in, one column per pair of steps. nullopt if the block has no two adjacent recorded steps.
std::optional<ReportFigure> token_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                           const HeatmapChoice& choice);
/// Similarity of every two steps of the block, A_out left and A_in right.
std::optional<ReportFigure> step_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                          const HeatmapChoice& choice);

/// FlashBlock, Fig. 5: a plot per layer with A_in (orange) and A_out (blue) of each head. `result`:
/// metric `similarity`. More than 12 layers give several figures.
std::vector<ReportFigure> head_similarity(const MetricResult& result);
/// The same similarity over the steps of a block, for all layers and heads together.
std::optional<ReportFigure> similarity_over_steps(const MetricResult& result);

/// Share of the attention that goes to the prefix, layer x head. `result`: `external_mass`.
std::optional<ReportFigure> external_mass_map(const MetricResult& result);

/// Entropy of the weights, layer x head. `result`: `entropy`.
std::optional<ReportFigure> entropy_map(const MetricResult& result);
/// Share of the weight by distance from the block, and from the query inside it; a curve for each
/// of some layers. `result`: `distance`.
std::optional<ReportFigure> attention_by_distance(const MetricResult& result);
std::optional<ReportFigure> attention_in_block(const MetricResult& result);
/// The heads of each class. `result`: `heads`.
std::optional<ReportTable> head_classes(const MetricResult& result);
/// Share of the weight by region over the steps of a block. `result`: `regions`.
std::optional<ReportFigure> regions_over_steps(const MetricResult& result);

/// Probability of the final token by layer and step. `result`: that of `blockscope lens`.
std::optional<ReportFigure> lens_map(const MetricResult& result);

/// Similarity to the kept A_out by its age, and the reuse error by kind of row. `result`:
/// `kept_pair`. `similarity`: for the mean over adjacent steps, or nullptr.
std::optional<ReportFigure> kept_by_age(const MetricResult& result,
                                        const MetricResult* similarity = nullptr);

/// One-step reuse error per layer, a line per tau. `result`: `reuse_error`.
std::optional<ReportFigure> reuse_error_by_layer(const MetricResult& result);
/// What gamma saves and costs, a line per tau.
std::optional<ReportFigure> gamma_curves(const std::vector<ReuseCurve>& curves);

/// What `blockscope.compare` measured: a row for each number, exact and with the policy.
ReportTable loop_comparison_table(const LoopComparison& found);

/// MAGE (Fig. 2): recall of step 1's set over the steps, a line per k. `result`: `recall`.
std::optional<ReportFigure> recall_over_steps(const MetricResult& result);
/// MAGE, Fig. 1a: how many times k the union of the tokens' sets is. `result`: `union_size`.
std::optional<ReportFigure> union_sizes(const MetricResult& result);
/// Whether attention sinks stay from step to step, and what they receive. `result`: `sinks`.
std::optional<ReportFigure> sinks_over_steps(const MetricResult& result);
std::optional<ReportTable> sinks_by_layer(const MetricResult& result);
/// MAGE, Fig. 3: estimation accuracy of sets shared by a block. `result`: `est_acc`.
std::optional<ReportFigure> estimation_accuracy(const MetricResult& result);
/// MAGE, Table 2. `result`: `query_statistics`, or `query_comparison` with the backbone's rows.
std::optional<ReportTable> query_stages(const MetricResult& result);

/// What a sparse policy's sets contained at every step, and its error. `result`: `selection`.
std::optional<ReportFigure> selection_over_steps(const MetricResult& result);
/// The same values per layer.
std::optional<ReportTable> selection_by_layer(const MetricResult& result);

/// What a cache computed, layer by layer and step by step, and how stale it was. `result`: `cache`.
std::optional<ReportTable> cache_means(const MetricResult& result);
std::optional<ReportFigure> cache_rows_map(const MetricResult& result);
std::optional<ReportFigure> cache_rows_over_steps(const MetricResult& result);
std::optional<ReportFigure> cache_staleness(const MetricResult& result);
/// Fast-dLLM (arXiv 2505.22618), Fig. 3: similarity of every two steps of the block, keys left and
/// values right. Needs level full.
std::optional<ReportFigure> kv_step_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                             const HeatmapChoice& choice);

/// How routers use their experts, layer by layer and from step to step. `result`: `router`.
std::optional<ReportFigure> router_usage_map(const MetricResult& result);
std::optional<ReportTable> router_by_layer(const MetricResult& result);
std::optional<ReportFigure> router_agreement(const MetricResult& result);

/// The drafted tokens that the target accepted, and the gain of other block lengths. `result`:
/// `draft`.
std::optional<ReportTable> draft_means(const MetricResult& result);
std::optional<ReportFigure> draft_lengths(const MetricResult& result);
std::optional<ReportFigure> draft_positions(const MetricResult& result);
/// Acceptance by entropies, external mass and depth, and how often more candidates would contain
/// the target's token.
std::optional<ReportFigure> draft_reasons(const MetricResult& result);
/// Needs /draft/cost.
std::optional<ReportFigure> draft_speedup(const MetricResult& result);

/// How the run decoded. `result`: `decoding`.
std::optional<ReportTable> decoding_means(const MetricResult& result);
/// Only of traces with edits, tokens taken back, insertions or deletions.
std::optional<ReportTable> decoding_edits(const MetricResult& result);
std::optional<ReportFigure> decoding_over_steps(const MetricResult& result);
std::optional<ReportFigure> settled_map(const MetricResult& result);

/// When final tokens are known, and in which order they are decided. `result`: `settling`.
std::optional<ReportFigure> settled_by_share(const MetricResult& result);
std::optional<ReportTable> settling_means(const MetricResult& result);

/// All drawings of a metric's result; some metrics have none.
std::vector<Figure> figures_of(const MetricResult& result);

/// A metric that is not built in: each array as a map of layers and heads, and over the steps, as
/// far as it has these axes.
std::vector<ReportFigure> own_figures(const MetricResult& result);

}  // namespace blockscope
