#include "analysis/math/running_mean.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

const RunningMean kNoTerms;

}  // namespace

void RunningMean::add(double value, std::int64_t terms) {
  if (!std::isfinite(value) || terms <= 0) {
    ++non_finite_;
    return;
  }
  terms_ += terms;
  ++values_;
  const double weight = static_cast<double>(terms);
  const double delta = value - mean_;
  mean_ += delta * (weight / static_cast<double>(terms_));
  squares_ += weight * delta * (value - mean_);
}

void RunningMean::merge(const RunningMean& other) {
  non_finite_ += other.non_finite_;
  if (other.terms_ == 0) return;
  const auto here = static_cast<double>(terms_);
  const auto there = static_cast<double>(other.terms_);
  const double delta = other.mean_ - mean_;
  terms_ += other.terms_;
  values_ += other.values_;
  mean_ += delta * (there / static_cast<double>(terms_));
  squares_ += other.squares_ + delta * delta * (here * there / static_cast<double>(terms_));
}

double RunningMean::mean() const { return terms_ > 0 ? mean_ : kNaN; }

double RunningMean::standard_deviation() const {
  if (values_ < 2) return kNaN;
  const auto count = static_cast<double>(values_);
  return std::sqrt(std::max(squares_, 0.0) / static_cast<double>(terms_) * count / (count - 1.0));
}

double RunningMean::standard_error() const {
  return standard_deviation() / std::sqrt(static_cast<double>(values_));
}

StepGrid::StepGrid(std::size_t layers, std::size_t columns) : columns_(columns), cells_(layers) {}

void StepGrid::add(std::size_t layer, std::size_t column, std::int64_t step, double value,
                   std::int64_t terms) {
  if (column >= columns_) throw std::logic_error("StepGrid: no such cell");
  row(layer, step)[column].add(value, terms);
}

std::int64_t StepGrid::add_row(std::size_t layer, std::int64_t step, std::span<const float> values,
                               std::int64_t terms) {
  if (values.size() > columns_) throw std::logic_error("StepGrid: no such cell");
  const auto finite = [](float value) { return std::isfinite(value); };
  const auto count = std::ranges::count_if(values, finite);
  if (count == 0 || terms <= 0) return std::ssize(values) - count;
  RunningMean* const cells = row(layer, step).data();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (finite(values[i])) cells[i].add(double{values[i]}, terms);
  }
  return std::ssize(values) - count;
}

std::vector<RunningMean>& StepGrid::row(std::size_t layer, std::int64_t step) {
  if (step < 1) throw std::logic_error("StepGrid: no such cell");
  auto& steps = cells_.at(layer);
  const auto index = static_cast<std::size_t>(step - 1);
  if (index >= steps.size()) steps.resize(index + 1);
  if (steps[index].empty()) steps[index].resize(columns_);
  return steps[index];
}

std::int64_t StepGrid::num_steps() const {
  std::size_t largest = 0;
  for (const auto& steps : cells_) largest = std::max(largest, steps.size());
  return static_cast<std::int64_t>(largest);
}

std::int64_t StepGrid::non_finite() const {
  std::int64_t count = 0;
  for (const auto& steps : cells_) {
    for (const auto& columns : steps) {
      for (const RunningMean& cell : columns) count += cell.non_finite();
    }
  }
  return count;
}

const RunningMean& StepGrid::cell(std::size_t layer, std::size_t column, std::int64_t step) const {
  const auto& steps = cells_.at(layer);
  if (step < 1 || std::cmp_greater(step, steps.size())) return kNoTerms;
  const auto& columns = steps[static_cast<std::size_t>(step - 1)];
  return columns.empty() ? kNoTerms : columns.at(column);
}

RunningMean StepGrid::over_steps(std::size_t layer, std::size_t column) const {
  RunningMean all;
  for (std::int64_t step = 1; step <= num_steps(); ++step) all.merge(cell(layer, column, step));
  return all;
}

ResultAxis StepGrid::step_axis() const {
  ResultAxis steps{"step", {}, {}};
  for (std::int64_t s = 1; s <= num_steps(); ++s) steps.index.push_back(static_cast<double>(s));
  return steps;
}

void StepGrid::append_steps(ResultArray& array, std::size_t layer, std::size_t first_column,
                            std::size_t columns, std::int64_t steps) const {
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (std::size_t i = 0; i < columns; ++i) {
      const RunningMean& mean = cell(layer, first_column + i, step);
      array.values.push_back(mean.mean());
      array.terms.push_back(mean.terms());
    }
  }
}

ResultArray StepGrid::means(std::string name, std::string unit, std::string description,
                            ResultAxis layers, ResultAxis columns) const {
  if (layers.size() != cells_.size() || columns.size() != columns_) {
    throw std::logic_error("StepGrid: axes of another size than the grid");
  }
  ResultArray array{std::move(name), std::move(unit), std::move(description), {}, {}, {}};
  for (std::size_t layer = 0; layer < cells_.size(); ++layer) {
    for (std::size_t column = 0; column < columns_; ++column) {
      append_steps(array, layer, column, 1, num_steps());
    }
  }
  array.axes = {std::move(layers), std::move(columns), step_axis()};
  return array;
}

}  // namespace blockscope
