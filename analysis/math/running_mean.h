// Running means of a metric. NaN and infinite values are counted but never averaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

/// Weighted mean and standard deviation of the added values. West (1979) keeps a small spread
/// around a large mean. Not thread-safe.
class RunningMean {
 public:
  /// Adds a value for `terms` terms, such as a block's mean over its positions. Values that are not
  /// finite, and terms <= 0, are left out and counted in non_finite().
  void add(double value, std::int64_t terms = 1);
  void merge(const RunningMean& other);

  std::int64_t terms() const { return terms_; }
  std::int64_t values() const { return values_; }  ///< calls of add() with a counted value
  std::int64_t non_finite() const { return non_finite_; }
  double mean() const;                ///< NaN without terms
  double standard_deviation() const;  ///< over the values, weighted, n - 1; NaN below two values
  /// Standard error of the mean: standard_deviation / sqrt(values).
  double standard_error() const;

 private:
  std::int64_t terms_ = 0;
  std::int64_t values_ = 0;
  std::int64_t non_finite_ = 0;
  double mean_ = 0.0;
  double squares_ = 0.0;  ///< sum of terms * (value - mean)^2
};

/// A RunningMean per (layer slot, column, step). Columns are heads, KV heads or any other fixed
/// axis. The step axis grows with the steps. Different threads may add to different layers at the
/// same time, but only one thread to one layer.
class StepGrid {
 public:
  StepGrid() = default;
  StepGrid(std::size_t layers, std::size_t columns);

  /// step >= 1.
  void add(std::size_t layer, std::size_t column, std::int64_t step, double value,
           std::int64_t terms = 1);
  /// Adds values[i], each for `terms` terms, to column i, without those that are not finite. With
  /// terms <= 0 it adds nothing. Returns how many values are not finite.
  std::int64_t add_row(std::size_t layer, std::int64_t step, std::span<const float> values,
                       std::int64_t terms);
  std::int64_t num_steps() const;  ///< largest step so far
  std::int64_t non_finite() const;
  const RunningMean& cell(std::size_t layer, std::size_t column, std::int64_t step) const;
  /// All steps of one (layer, column) together.
  RunningMean over_steps(std::size_t layer, std::size_t column) const;

  /// "step" from 1 to num_steps().
  ResultAxis step_axis() const;
  /// Appends means and terms [step, column] of `columns` columns from `first_column` on. Steps
  /// without values are NaN.
  void append_steps(ResultArray& array, std::size_t layer, std::size_t first_column,
                    std::size_t columns, std::int64_t steps) const;

  /// Mean [layer, column, step]. `layers`, `columns` give the axes; step runs from 1.
  ResultArray means(std::string name, std::string unit, std::string description, ResultAxis layers,
                    ResultAxis columns) const;

 private:
  std::vector<RunningMean>& row(std::size_t layer, std::int64_t step);

  std::size_t columns_ = 0;
  std::vector<std::vector<std::vector<RunningMean>>> cells_;  // [layer][step - 1][column]
};

}  // namespace blockscope
