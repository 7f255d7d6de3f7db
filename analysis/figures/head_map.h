// A map layer x query head (or another axis) of one value, as a part of a report.
#pragma once

#include <optional>
#include <string>

#include "analysis/figures/report_figure.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

struct HeadMap {
  std::string name, title;
  std::string caption;           ///< with {} for the formula
  std::string value;             ///< name and unit of the value
  double upper = 1.0;            ///< the colours' range, from 0
  std::string columns = "head";  ///< the second axis
  std::string x_label = "query head";
};

/// Means over everything but layer and `columns` of `array`; unset if it holds no value.
std::optional<ReportFigure> head_map(const ResultArray& array, const HeadMap& map,
                                     const std::string& formula);

}  // namespace blockscope
