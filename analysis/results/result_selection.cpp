#include "analysis/results/result_selection.h"

#include <algorithm>
#include <set>

namespace blockscope {
namespace {

std::vector<double> common(const ResultAxis& axis, const std::vector<double>& wanted) {
  std::vector<double> found;
  for (const double element : wanted) {
    if (std::ranges::find(axis.index, element) != axis.index.end()) found.push_back(element);
  }
  return found;
}

}  // namespace

SelectionOutcome keep_elements(std::vector<MetricResult>& results, const std::string& axis,
                               const std::vector<double>& wanted) {
  SelectionOutcome outcome;
  std::set<double> there;
  for (MetricResult& result : results) {
    std::vector<ResultArray> kept;
    for (ResultArray& array : result.arrays) {
      if (!array.has_axis(axis)) {
        outcome.whole.push_back(result.metric + "/" + array.name);
        kept.push_back(std::move(array));
        continue;
      }
      const ResultAxis& elements = array.axes.at(array.axis(axis));
      there.insert(elements.index.begin(), elements.index.end());
      const std::vector<double> found = common(elements, wanted);
      if (found.empty()) continue;
      outcome.matched = true;
      kept.push_back(select(array, axis, found));
    }
    result.arrays = std::move(kept);
  }
  outcome.there.assign(there.begin(), there.end());
  return outcome;
}

}  // namespace blockscope
