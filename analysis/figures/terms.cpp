#include "analysis/figures/terms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "analysis/figures/number_text.h"

namespace blockscope {

std::vector<std::string> labels_of(const ResultAxis& axis) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < axis.size(); ++i) labels.push_back(axis.label(i));
  return labels;
}

std::int64_t total_terms(const ResultArray& array) {
  if (!array.terms.empty()) {
    return std::accumulate(array.terms.begin(), array.terms.end(), std::int64_t{0});
  }
  return std::count_if(array.values.begin(), array.values.end(),
                       [](double value) { return std::isfinite(value); });
}

std::string terms_text(const ResultArray& array, const std::vector<std::size_t>& indices) {
  if (array.terms.empty()) return "";
  std::size_t at = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) at = at * array.axes[i].size() + indices[i];
  return count_text(array.terms.at(at));
}

ValueRange range_of(const ResultArray& array) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  ValueRange range{kNone, kNone};
  for (const double value : array.values) {
    if (!std::isfinite(value)) continue;
    range.least = std::isnan(range.least) ? value : std::min(range.least, value);
    range.greatest = std::isnan(range.greatest) ? value : std::max(range.greatest, value);
  }
  return range;
}

}  // namespace blockscope
