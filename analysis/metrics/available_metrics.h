// Finds the metrics that can be computed from a group of traces, and why others can't.
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

/// Whether every trace of the group has the dataset that the metric describes.
bool applies(const MetricInfo& metric, const TraceGroup& traces);

/// The default metrics that every trace of the group has the data for.
MetricChoice available_metrics(const TraceGroup& traces, const MetricOptions& options);

/// Throws TraceError, like the pass, if a trace lacks what one of the metrics needs. Returns the
/// bytes to read for all of them per recorded row of the first trace, with `num_layers` of the
/// recorded layers.
std::size_t check_metrics(const TraceGroup& traces, const std::vector<const MetricInfo*>& metrics,
                          const MetricOptions& options, std::size_t num_layers);

}  // namespace blockscope
