// Bar charts. Bars start at 0, so the length of a bar is its value.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "analysis/figures/gnuplot.h"

namespace blockscope {

struct BarSeries {
  std::string title;           ///< enhanced text
  std::vector<double> values;  ///< [groups]; NaN: no bar
  std::string color = {};      ///< empty: the next of kLineColors
  double density = 1.0;        ///< of the fill; below 1: lighter, with an outline
};

struct BarChart {
  std::string x_label, y_label;  ///< enhanced text
  double y_upper = 1.0;
  std::vector<std::string> groups = {};  ///< plain text below each group of bars
  std::vector<BarSeries> series = {};
  std::size_t most_labels = 24;  ///< of the groups; with more groups, every n-th has a label
};

/// Gives bars the colours of the methods that their titles or `names` name. Bars whose colour is
/// already there are lighter.
void look_like_methods(std::vector<BarSeries>& series, std::vector<std::string> names = {});

/// Commands of one plot; the data file is `file`, a line per group.
std::string bar_commands(const BarChart& chart, const std::string& file);
std::string bar_data(const BarChart& chart);

/// Fills script, data and size of a figure of one plot.
void draw_bars(const BarChart& chart, Figure& figure);

}  // namespace blockscope
