// The report's sections, in the order of the page: which figures stand where, and one line in place
// of each that these traces have no data for.
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
  std::vector<BlockSteps> blocks;  ///< of its sequence
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
/// MAGE's: key sets and query statistics.
ReportSection sets_section(const ReportMetrics& metrics);
/// What a sparse policy's sets held, for traces of one.
ReportSection selection_section(const ReportMetrics& metrics);
/// What a bidirectional model's cache computed and kept, for traces that say so.
ReportSection cache_section(const TraceGroup& traces, const PictureChoice& choice,
                            const ReportMetrics& metrics);
/// Which experts the routers chose, for traces that recorded it.
ReportSection router_section(const ReportMetrics& metrics);
/// What of a draft its target accepted, for drafted traces.
ReportSection draft_section(const ReportMetrics& metrics);
ReportSection decoding_section(const ReportMetrics& metrics);
/// Definitions, sources and what was left out, for every metric on the page.
ReportSection methods_section(const ReportMetrics& metrics);

}  // namespace blockscope
