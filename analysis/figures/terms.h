// Small helpers of the figures: labels, counts of terms and ranges of results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

std::vector<std::string> labels_of(const ResultAxis& axis);
/// Sum of the terms of all cells; the number of finite values if the array has no terms.
std::int64_t total_terms(const ResultArray& array);
/// "1,234", or "" if the array has no terms.
std::string terms_text(const ResultArray& array, const std::vector<std::size_t>& indices);
/// Smallest and largest finite value; NaN without one.
struct ValueRange {
  double least, greatest;
  bool empty() const { return !(least <= greatest); }
};
ValueRange range_of(const ResultArray& array);

}  // namespace blockscope
