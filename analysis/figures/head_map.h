// A map layer x query head of one value, as a part of a report.
#pragma once

#include <optional>
#include <string>

#include "analysis/figures/report_figure.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

struct HeadMap {
  std::string name, title;
  std::string caption;  ///< with {} for the formula
  std::string value;    ///< name and unit of the value
  double upper = 1.0;   ///< the colours' range, from 0
};

/// Means over everything but layer and head of `array`; unset if it holds no value.
std::optional<ReportFigure> head_map(const ResultArray& array, const HeadMap& map,
                                     const std::string& formula);

}  // namespace blockscope
