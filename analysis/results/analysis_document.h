// The results of one `blockscope analyze` and their origin, for the exports.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

/// A metric that can't be computed from these traces.
struct UnavailableMetric {
  std::string metric;
  std::string level;   ///< lowest --record level that has it
  std::string reason;  ///< for the user: what is missing and what to do
};

struct AnalysisDocument {
  std::string program;              ///< "blockscope 0.3.0 (v0.3.0-12-gabc)"
  std::vector<std::string> traces;  ///< paths, in the order of the command line
  std::string model_digest;         ///< of the checkpoint; may be empty
  /// Flags that limited the analysis, as the user gave them: {"--layer", "0-3"}.
  std::vector<std::pair<std::string, std::string>> selection;
  std::vector<MetricResult> results;
  std::vector<UnavailableMetric> unavailable;
};

/// A number as every text export writes it: the shortest text that reads back as the same double,
/// or "nan", "inf", "-inf".
std::string number_text(double value);

}  // namespace blockscope
