// The report's sections with their figures, in the order of the page. A line of text replaces each
// figure that these traces have no data for.
#pragma once

#include <cstddef>
#include <vector>

#include "analysis/figures/figures.h"
#include "analysis/pass/block_index.h"
#include "analysis/pass/step_pass.h"
#include "analysis/report/page.h"
#include "analysis/report/report_metrics.h"
#include "analysis/report/reuse_section.h"

namespace blockscope {

/// The block that pictures show.
struct PictureChoice {
  std::vector<BlockSteps> blocks;  ///< all blocks of the sequence
  std::size_t block = 0;           ///< index into blocks
  HeatmapChoice heatmap;
};

/// How the chosen sequence was decoded, token by token.
ReportSection trajectory_section(const TraceGroup& traces, const PictureChoice& choice);
/// FlashBlock's observation: heatmaps, similarity per head, external mass.
ReportSection stability_section(const TraceGroup& traces, const PictureChoice& choice,
                                const ReportMetrics& metrics);
/// What reuse would save and cost.
ReportSection reuse_section(const ReportMetrics& metrics, const ReuseResults& reuse);
/// Which keys receive the weights, and attention sinks.
ReportSection attention_section(const TraceGroup& traces, const PictureChoice& choice,
                                const ReportMetrics& metrics);
/// MAGE's observations: key sets and query statistics.
ReportSection sets_section(const ReportMetrics& metrics);
/// Keys that a sparse policy read, for traces of sparse policies.
ReportSection selection_section(const ReportMetrics& metrics);
/// What a bidirectional model's cache computed and kept, for traces that recorded it.
ReportSection cache_section(const TraceGroup& traces, const PictureChoice& choice,
                            const ReportMetrics& metrics);
/// Which experts the routers chose, for traces that recorded it.
ReportSection router_section(const ReportMetrics& metrics);
/// Drafted tokens that the target accepted, for drafted traces.
ReportSection draft_section(const ReportMetrics& metrics);
ReportSection decoding_section(const ReportMetrics& metrics);
/// A loop with and without a policy, with the frames of videos.
ReportSection compare_section(const LoopComparison& found);
/// Results of metrics that are not built in.
ReportSection own_section(const std::vector<MetricResult>& results);
/// Definitions, sources and what was left out, for every metric on the page.
ReportSection methods_section(const ReportMetrics& metrics);

}  // namespace blockscope
