// Everything one `blockscope analyze` found out, as the exports write it: results and where they
// come from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

/// A metric that these traces can't give.
struct UnavailableMetric {
  std::string metric;
  std::string level;   ///< lowest --record level that has it
  std::string reason;  ///< for people: what is missing and what to do
};

struct AnalysisDocument {
  std::string program;              ///< "blockscope 0.3.0 (v0.3.0-12-gabc)"
  std::vector<std::string> traces;  ///< paths, in the order of the command line
  std::string model_digest;         ///< of the checkpoint; may be empty
  /// Flags that narrowed the analysis, as given: {"--layer", "0-3"}.
  std::vector<std::pair<std::string, std::string>> selection;
  std::vector<MetricResult> results;
  std::vector<UnavailableMetric> unavailable;
};

/// How a number is written in every text export: the shortest form that reads back to the same
/// double; "nan", "inf", "-inf".
std::string number_text(double value);

}  // namespace blockscope
