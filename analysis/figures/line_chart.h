// Curves over one axis: the form of most of the report's figures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/figures/gnuplot.h"
#include "analysis/figures/number_text.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

struct Curve {
  std::string title;        ///< enhanced text: "A_{out}", "k = 32"
  std::vector<double> x;    ///< ascending
  std::vector<double> y;    ///< NaN: no terms
  std::string color = "";   ///< empty: the next of kLineColors
  int point = 0;            ///< gnuplot's point type; 0: the next of kPointTypes
  int dash = 0;             ///< gnuplot's dash type; 0: that of line_look()
  double point_size = 0.6;  ///< 0: a line without markers
};

/// Gives curves the looks of the methods that their titles name.
void look_like_methods(std::vector<Curve>& curves);

/// Whether some y is finite.
bool has_values(const Curve& curve);

struct LineChart {
  std::string x_label, y_label;  ///< enhanced text, with unit
  double y_lower = 0.0, y_upper = 1.0;
  std::vector<Curve> curves = {};
  std::vector<std::string> x_names = {};  ///< labels at 0, 1, ... instead of numbers; may be empty
  std::optional<double> x_from = {};      ///< where the x axis starts; unset: at the first point
};

/// Commands of one plot; the data file is `file`, one block of lines per curve.
std::string chart_commands(const LineChart& chart, const std::string& file);
std::string chart_data(const LineChart& chart);

/// Fills script, data and size of a figure of one plot.
void draw_chart(const LineChart& chart, Figure& figure);

/// One curve per element of `curves` (unset: a single one) over `x` of an array [curves, x] or [x].
std::vector<Curve> curves_of(const ResultArray& array, const std::string& x,
                             const std::string& curves, const std::string& title_prefix);

/// Merges curves with equal points: "\u03c4 = 2", "\u03c4 = 3" -> "\u03c4 = 2, 3". `prefix`: the
/// common beginning of all titles.
std::vector<Curve> merge_equal(const std::vector<Curve>& curves, const std::string& prefix);

/// Rows x, columns curves: the values, and the terms of the first array cell of each row.
NumberTable curve_numbers(const std::string& x_name, const std::vector<Curve>& curves);

/// The largest finite y of all curves; 0 without one.
double largest_of(const std::vector<Curve>& curves);
/// A round number at or above the largest finite value.
double round_up_to(double largest);

}  // namespace blockscope
