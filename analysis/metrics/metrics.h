// All metrics by name, for `analyze --metric`, reports and the viewer. To add a metric, write a
// file with its StepMetric and its formula, and add a line to metrics.cpp.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/pass/step_pass.h"

namespace blockscope {

struct MetricOptions {
  std::vector<std::int64_t>
      set_sizes;  ///< k of recall and covered probability; empty: powers of 2 up to k
  std::vector<double> taus{1.0, 2.0, 3.0, 4.0};  ///< tau of the reuse error
  ReuseCount count = ReuseCount::since_read;     ///< what these tau count
  double sink_factor = 3.0;                      ///< a sink receives more than this times the mean
  bool from_summary = false;                     ///< read /summary even if the trace has the arrays
};

/// An array of a metric's result that the viewer shows by layer, head and step.
struct MetricView {
  const char* label;            ///< for people
  const char* array;            ///< its name in the MetricResult
  const char* unit;             ///< for people
  const char* level = nullptr;  ///< lowest --record level; nullptr: the metric's
  /// The shown element of other axes: the largest "k", the "tau" given here, the first "estimator".
  double tau = 0.0;
  /// The array of the mean over all steps; nullptr: the mean of `array`.
  const char* by_head = nullptr;
  const char* rows = nullptr;  ///< the shown element of the axis "rows"; nullptr: no such axis
};

struct MetricInfo {
  std::string name;         ///< "similarity"
  std::string description;  ///< one line
  std::string level;        ///< lowest --record level: "summary", "sets", "outputs", "full"
  /// In `analyze` without --metric and in reports, if the trace has the level.
  bool by_default = true;
  std::vector<std::string_view> reads;  ///< flags of `analyze` with MetricOptions that it uses
  std::function<std::unique_ptr<StepMetric>(const MetricOptions&)> make;
  /// The dataset that the metric describes; unset: all traces have it. By default, the metric is
  /// neither run nor mentioned for traces without this dataset.
  std::optional<Field> only_with = std::nullopt;
  std::vector<MetricView> views = {};  ///< what the viewer's panels offer
};

const std::vector<MetricInfo>& all_metrics();
/// Throws UsageError with all names.
const MetricInfo& metric_by_name(const std::string& name);

}  // namespace blockscope
