#include "analysis/report/report_metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/metrics/available_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/metrics/query_comparison.h"
#include "analysis/pass/block_index.h"

namespace blockscope {
namespace {

/// Why the metric can't be computed from these traces; empty if it can.
std::string obstacle(const MetricInfo& metric, const TraceGroup& traces) {
  const RecordLevel level = lowest_level(traces);
  if (level < parse_record_level(metric.level)) {
    return fmt::format(
        "Not in this trace, which was recorded with --record {}: {} needs --record "
        "{}.",
        to_string(level), metric.description, metric.level);
  }
  for (std::size_t i = 0; i < traces.size(); ++i) {
    try {
      // Try a temporary instance first: a metric that refuses one trace would end the whole pass.
      metric.make({})->begin_trace(traces.trace(i), traces.shape());
    } catch (const TraceError& error) {
      return error.what();
    }
  }
  return "";
}

bool has_steps_to_compare(const TraceReader& trace) {
  return std::ranges::any_of(list_blocks(trace), [](const BlockSteps& block) {
    return std::ranges::count_if(block.steps, &StepRef::recorded) > 1;
  });
}

}  // namespace

const MetricResult* ReportMetrics::find(const std::string& metric) const {
  const auto at = found.find(metric);
  return at == found.end() ? nullptr : &at->second;
}

RecordLevel lowest_level(const TraceGroup& traces) {
  RecordLevel level = RecordLevel::full;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    level = std::min(level, traces.trace(i).info().meta.level);
  }
  return level;
}

ReportMetrics measure(const TraceGroup& traces, const std::string& backbone,
                      const PassOptions& options) {
  ReportMetrics results;
  if (!backbone.empty()) {  // first, to refuse a backbone that doesn't pair at once
    const TraceGroup other({backbone});
    MetricResult compared = compare_query_statistics(traces, other, {}, options);
    results.found.emplace(compared.metric, std::move(compared));
  }
  for (std::size_t i = 0; i < traces.size() && !results.compares_steps; ++i) {
    results.compares_steps = has_steps_to_compare(traces.trace(i));
  }
  std::vector<std::unique_ptr<StepMetric>> metrics;
  for (const MetricInfo& metric : all_metrics()) {
    if (!metric.by_default) continue;
    if (metric.name == std::string("query_statistics") && !backbone.empty()) continue;  // included
    if (!applies(metric, traces)) continue;
    const std::string reason = obstacle(metric, traces);
    if (reason.empty()) {
      metrics.push_back(metric.make({}));
    } else {
      results.missing[metric.name] = reason;
    }
  }
  if (!metrics.empty()) {
    for (MetricResult& result : run_pass(traces, metrics, options)) {
      results.found.emplace(result.metric, std::move(result));
    }
  }
  return results;
}

}  // namespace blockscope
