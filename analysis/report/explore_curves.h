// The curves of the report's line charts for one layer and head, which a reader of the page can
// choose.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/report/report_metrics.h"

namespace blockscope {

/// By figure: names, looks, labels, places on the x axis, and per curve the values of every layer
/// and head; the last layer and the last head are means over all. At most `limit` values; figures
/// that don't fit are added to `too_large`.
nlohmann::json curves_by_head(const ReportMetrics& metrics, std::size_t limit,
                              std::vector<std::string>& too_large);

}  // namespace blockscope
