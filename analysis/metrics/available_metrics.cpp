#include "analysis/metrics/available_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "decode_record/schema/trace_layout.h"

namespace blockscope {
namespace {

/// Empty if the level of every trace has the metric.
std::string level_reason(const TraceGroup& traces, const MetricInfo& metric) {
  const RecordLevel needed = parse_record_level(metric.level);
  for (std::size_t i = 0; i < traces.size(); ++i) {
    const TraceInfo& info = traces.trace(i).info();
    if (info.meta.level >= needed) continue;
    return fmt::format("needs --record {}; {} has {}", metric.level, info.path,
                       to_string(info.meta.level));
  }
  return "";
}

/// Empty if the metric accepts every trace.
std::string refusal(const TraceGroup& traces, const MetricInfo& metric,
                    const MetricOptions& options) {
  try {
    check_metrics(traces, {&metric}, options, traces.shape().layers.size());
    return "";
  } catch (const TraceError& error) {
    return error.what();
  }
}

bool has_layers(const DatasetSpec& spec) {
  const auto end = spec.axes.begin() + static_cast<std::ptrdiff_t>(spec.rank);
  return std::find(spec.axes.begin(), end, Axis::layer) != end;
}

}  // namespace

bool applies(const MetricInfo& metric, const TraceGroup& traces) {
  for (std::size_t i = 0; metric.only_with.has_value() && i < traces.size(); ++i) {
    if (!traces.trace(i).has(*metric.only_with)) return false;
  }
  return true;
}

MetricChoice available_metrics(const TraceGroup& traces, const MetricOptions& options) {
  MetricChoice choice;
  for (const MetricInfo& metric : all_metrics()) {
    if (!metric.by_default || !applies(metric, traces)) continue;
    std::string reason = level_reason(traces, metric);
    if (reason.empty()) reason = refusal(traces, metric, options);
    if (reason.empty()) {
      choice.metrics.push_back(&metric);
    } else {
      choice.unavailable.push_back({metric.name, metric.level, reason});
    }
  }
  return choice;
}

std::size_t check_metrics(const TraceGroup& traces, const std::vector<const MetricInfo*>& metrics,
                          const MetricOptions& options, std::size_t num_layers) {
  std::set<Field> fields;
  for (const MetricInfo* info : metrics) {
    const auto metric = info->make(options);
    for (std::size_t i = 0; i < traces.size(); ++i) {
      const Needs needs = metric->begin_trace(traces.trace(i), traces.shape());
      if (i == 0) fields.insert(needs.fields.begin(), needs.fields.end());
    }
  }
  std::size_t bytes = 0;
  const TraceMeta& meta = traces.trace(0).info().meta;
  for (const Field field : fields) {
    const std::size_t row = row_bytes(spec_of(field), meta);
    bytes += has_layers(spec_of(field)) && !meta.layers.empty()
                 ? row / meta.layers.size() * num_layers
                 : row;
  }
  return bytes;
}

}  // namespace blockscope
