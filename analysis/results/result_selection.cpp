#include "analysis/results/result_selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "decode_record/base/error.h"

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

std::vector<std::string> metrics_without(const std::vector<MetricResult>& results,
                                         const std::vector<std::string>& by) {
  std::vector<std::string> without;
  std::set<std::string> axes;
  for (const MetricResult& result : results) {
    bool any = false;
    for (const ResultArray& array : result.arrays) {
      for (const ResultAxis& axis : array.axes) axes.insert(axis.name);
      any = any || std::ranges::all_of(by, [&](const auto& axis) { return array.has_axis(axis); });
    }
    if (!any) without.push_back(result.metric);
  }
  if (!results.empty() && without.size() == results.size()) {
    throw UsageError(fmt::format(
        "--by {}: no result has {}. HINT: the axes are {}", fmt::join(by, ","),
        by.size() > 1 ? "an array with both axes" : "this axis", fmt::join(axes, ", ")));
  }
  return without;
}

}  // namespace blockscope
