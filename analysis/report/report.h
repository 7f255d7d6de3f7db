// The contents of the page of `blockscope report`, from one or more traces of one model. All
// numbers come from the metrics of analysis/; nothing here computes one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/pass/step_pass.h"
#include "analysis/report/page.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

struct ReportOptions {
  std::string title;  ///< empty: "What <model> did, step by step"
  /// What the pictures of one block show, in the numbers of the model and the trace. Unset: the
  /// middle recorded layer, all heads together, and the block of the first trace with the most
  /// real text, without tokens that end a text. A tie is decided by the most recorded steps.
  std::optional<std::int64_t> layer, head, sequence, block;
  std::string backbone;           ///< trace of the backbone, captured with --replay; empty: none
  std::string compare;            ///< file of blockscope.compare; empty: none
  std::vector<MetricResult> own;  ///< results of metrics that are not built in
  std::size_t threads = 0;        ///< 0: one per core
  /// Called with the rows read and all rows. Returning false stops with InterruptedError.
  std::function<bool(std::int64_t, std::int64_t)> progress;
};

/// Throws UsageError for a layer, head, sequence or block that the trace does not have, and lists
/// those that it has. Throws TraceError for traces that can't be read, and what
/// read_loop_comparison throws.
ReportPage make_report(const TraceGroup& traces, const ReportOptions& options);

}  // namespace blockscope
