// Bars beside each other, from 0: the length of a bar is its value.
#pragma once

#include <string>
#include <vector>

#include "analysis/figures/gnuplot.h"

namespace blockscope {

struct BarSeries {
  std::string title;           ///< enhanced text
  std::vector<double> values;  ///< [groups]; NaN: no bar
};

struct BarChart {
  std::string x_label, y_label;  ///< enhanced text
  double y_upper = 1.0;
  std::vector<std::string> groups = {};  ///< plain text below each group of bars
  std::vector<BarSeries> series = {};
};

/// Fills script, data and size.
void draw_bars(const BarChart& chart, Figure& figure);

}  // namespace blockscope
