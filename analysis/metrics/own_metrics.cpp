#include "analysis/metrics/own_metrics.h"

#include <utility>

namespace blockscope {
namespace {

std::vector<OwnMetric>& table() {
  static auto* metrics = new std::vector<OwnMetric>;  // holds objects of Python, which ends first
  return *metrics;
}

}  // namespace

const std::vector<OwnMetric>& own_metrics() { return table(); }

void add_own_metric(OwnMetric metric) { table().push_back(std::move(metric)); }

}  // namespace blockscope
