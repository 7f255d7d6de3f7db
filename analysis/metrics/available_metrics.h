// Which metrics a group of traces can give, and why not the others.
#pragma once

#include <cstddef>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/results/analysis_document.h"

namespace blockscope {

struct MetricChoice {
  std::vector<const MetricInfo*> metrics;
  std::vector<UnavailableMetric> unavailable;
};

/// Whether every trace of the group has the dataset that the metric is about.
bool applies(const MetricInfo& metric, const TraceGroup& traces);

/// The metrics that are on by default and that every trace of the group has the data for.
MetricChoice available_metrics(const TraceGroup& traces, const MetricOptions& options);

/// Throws TraceError, as the pass would, when a trace lacks what one of the metrics needs. Returns
/// the bytes that a recorded row of the first trace costs to read for all of them, with
/// `num_layers` of the recorded layers.
std::size_t check_metrics(const TraceGroup& traces, const std::vector<const MetricInfo*>& metrics,
                          const MetricOptions& options, std::size_t num_layers);

}  // namespace blockscope
