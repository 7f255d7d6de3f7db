#include "analysis/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/similarity_metric.h"
#include "decode_record/error.h"

namespace blockscope {

const std::vector<MetricInfo>& all_metrics() {
  static const std::vector<MetricInfo> metrics{
      {"similarity", "cosine of A_out and A_in between adjacent steps", "summary", true,
       make_similarity_metric},
  };
  return metrics;
}

const MetricInfo& metric_by_name(const std::string& name) {
  const auto found = std::ranges::find(all_metrics(), name, &MetricInfo::name);
  if (found != all_metrics().end()) return *found;
  std::string names;
  for (const MetricInfo& metric : all_metrics()) {
    names += (names.empty() ? "" : ", ") + metric.name;
  }
  throw UsageError(
      fmt::format("metric `{}`: there is none of this name; there are {}", name, names));
}

}  // namespace blockscope
