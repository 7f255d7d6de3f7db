// A figure or table of the report, before it is drawn.
#pragma once

#include <string>

#include "analysis/figures/gnuplot.h"
#include "analysis/figures/number_text.h"

namespace blockscope {

/// A drawing with the numbers it shows.
struct ReportFigure {
  Figure figure;
  NumberTable numbers;  ///< hidden below the drawing until a click; may be empty
};

/// A table with a caption, in place of a figure.
struct ReportTable {
  std::string name;  ///< like Figure::name
  std::string title;
  std::string caption;
  NumberTable table;
  bool prose = false;  ///< cells are sentences, which wrap
};

}  // namespace blockscope
