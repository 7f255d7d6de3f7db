// A figure or table of the report, before it is drawn.
#pragma once

#include <string>

#include "analysis/figures/gnuplot.h"
#include "analysis/figures/number_text.h"

namespace blockscope {

/// A drawing with the numbers it shows.
struct ReportFigure {
  Figure figure;
  NumberTable numbers;  ///< folded away below the drawing; may be empty
};

/// A captioned table that stands where a figure would.
struct ReportTable {
  std::string name;  ///< as Figure::name
  std::string title;
  std::string caption;
  NumberTable table;
};

}  // namespace blockscope
