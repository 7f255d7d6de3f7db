// All metrics by name: what `analyze --metric` lists and what reports and the viewer ask for. To
// add one: a file with its StepMetric and its formula, a line in metrics.cpp.
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
      set_sizes;  ///< k of recall, covered probability; empty: powers of 2 to k
  std::vector<double> taus{1.0, 2.0, 3.0, 4.0};  ///< of reuse error
  bool from_summary = false;                     ///< read /summary even where the arrays are there
};

struct MetricInfo {
  std::string name;         ///< "similarity"
  std::string description;  ///< one line
  std::string level;        ///< lowest --record level: "summary", "sets", "outputs", "full"
  bool by_default = true;   ///< in `analyze` without --metric, if the trace has the level
  std::vector<std::string_view> reads;  ///< flags of `analyze` whose MetricOptions it looks at
  std::function<std::unique_ptr<StepMetric>(const MetricOptions&)> make;
  /// Traces without this dataset have nothing that the metric could be about: by default it is
  /// neither run nor mentioned there. Unset: every trace has.
  std::optional<Field> only_with = std::nullopt;
};

const std::vector<MetricInfo>& all_metrics();
/// Throws UsageError listing the names.
const MetricInfo& metric_by_name(const std::string& name);

}  // namespace blockscope
