#include "analysis/results/metric_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

std::size_t cells(const std::vector<ResultAxis>& axes) {
  return std::accumulate(axes.begin(), axes.end(), std::size_t{1},
                         [](std::size_t n, const ResultAxis& axis) { return n * axis.size(); });
}

/// Coordinates of a flat index.
std::vector<std::size_t> unravel(std::size_t flat, const std::vector<ResultAxis>& axes) {
  std::vector<std::size_t> at(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    at[i] = flat % axes[i].size();
    flat /= axes[i].size();
  }
  return at;
}

std::size_t ravel(const std::vector<std::size_t>& at, const std::vector<ResultAxis>& axes) {
  std::size_t flat = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) flat = flat * axes[i].size() + at[i];
  return flat;
}

ResultArray without_values(const ResultArray& array, std::vector<ResultAxis> axes) {
  ResultArray result{array.name, array.unit, array.description, std::move(axes), {}, {}};
  result.values.assign(cells(result.axes), kNaN);
  return result;
}

}  // namespace

std::string ResultAxis::label(std::size_t i) const {
  if (!labels.empty()) return labels.at(i);
  const double value = index.at(i);
  if (std::isfinite(value) && value == std::round(value) && std::abs(value) < 1e15) {
    return fmt::format("{:.0f}", value);
  }
  return fmt::format("{}", value);
}

std::size_t ResultArray::axis(const std::string& wanted) const {
  const auto found = std::ranges::find(axes, wanted, &ResultAxis::name);
  if (found == axes.end()) throw Error(fmt::format("{}: has no axis `{}`", name, wanted));
  return static_cast<std::size_t>(found - axes.begin());
}

bool ResultArray::has_axis(const std::string& wanted) const {
  return std::ranges::find(axes, wanted, &ResultAxis::name) != axes.end();
}

double ResultArray::at(const std::vector<std::size_t>& indices) const {
  bool inside = indices.size() == axes.size();
  for (std::size_t i = 0; inside && i < axes.size(); ++i) inside = indices[i] < axes[i].size();
  if (!inside) throw Error(fmt::format("{}: an index is out of range", name));
  return values.at(ravel(indices, axes));
}

const ResultArray* MetricResult::find(const std::string& name) const {
  const auto found = std::ranges::find(arrays, name, &ResultArray::name);
  return found == arrays.end() ? nullptr : &*found;
}

const ResultArray& MetricResult::array(const std::string& name) const {
  if (const ResultArray* found = find(name)) return *found;
  throw Error(fmt::format("{}: has no array `{}`", metric, name));
}

ResultArray mean_over_others(const ResultArray& array, const std::vector<std::string>& keep) {
  std::vector<std::size_t> kept;
  std::vector<ResultAxis> axes;
  for (const std::string& name : keep) {
    kept.push_back(array.axis(name));
    axes.push_back(array.axes[kept.back()]);
  }
  ResultArray result = without_values(array, std::move(axes));
  result.terms.assign(result.values.size(), 0);
  std::vector<double> sums(result.values.size(), 0.0);
  // Stride in the result of each axis of `array`; 0 for an axis that is averaged. The viewer runs
  // this between two frames, so it must not decompose an index for each element.
  std::vector<std::size_t> stride(array.axes.size(), 0);
  for (std::size_t k = kept.size(), size = 1; k-- > 0; size *= result.axes[k].size()) {
    stride[kept[k]] = size;
  }
  std::vector<std::size_t> at(array.axes.size(), 0);
  std::size_t to = 0;
  for (std::size_t i = 0; i < array.values.size(); ++i) {
    const std::int64_t terms = array.terms.empty() ? 1 : array.terms[i];
    if (terms > 0 && !std::isnan(array.values[i])) {
      sums[to] += array.values[i] * static_cast<double>(terms);
      result.terms[to] += terms;
    }
    for (std::size_t axis = at.size(); axis-- > 0;) {
      to += stride[axis];
      if (++at[axis] < array.axes[axis].size()) break;
      to -= stride[axis] * at[axis];
      at[axis] = 0;
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (result.terms[i] > 0) result.values[i] = sums[i] / static_cast<double>(result.terms[i]);
  }
  return result;
}

ResultArray select(const ResultArray& array, const std::string& axis,
                   const std::vector<double>& wanted) {
  const std::size_t which = array.axis(axis);
  const ResultAxis& all = array.axes[which];
  for (const double value : wanted) {
    if (std::ranges::find(all.index, value) != all.index.end()) continue;
    std::string there;
    for (std::size_t i = 0; i < all.index.size(); ++i) {
      there += (i == 0 ? "" : ", ") + ResultAxis{"", {all.index[i]}, {}}.label(0);
    }
    throw UsageError(fmt::format("{}: {} {} does not exist; expected one of {}", array.name, axis,
                                 ResultAxis{"", {value}, {}}.label(0), there));
  }
  std::vector<std::size_t> chosen;
  ResultAxis shorter{all.name, {}, {}};
  for (std::size_t i = 0; i < all.index.size(); ++i) {
    if (std::ranges::find(wanted, all.index[i]) == wanted.end()) continue;
    chosen.push_back(i);
    shorter.index.push_back(all.index[i]);
    if (!all.labels.empty()) shorter.labels.push_back(all.labels[i]);
  }
  std::vector<ResultAxis> axes = array.axes;
  axes[which] = std::move(shorter);
  ResultArray result = without_values(array, std::move(axes));
  if (!array.terms.empty()) result.terms.resize(result.values.size());
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    std::vector<std::size_t> at = unravel(i, result.axes);
    at[which] = chosen[at[which]];
    const std::size_t from = ravel(at, array.axes);
    result.values[i] = array.values[from];
    if (!array.terms.empty()) result.terms[i] = array.terms[from];
  }
  return result;
}

ResultArray part_at(const ResultArray& array, const std::string& axis, const std::string& label) {
  const std::size_t which = array.axis(axis);
  const std::vector<std::string>& labels = array.axes[which].labels;
  const auto found = std::ranges::find(labels, label);
  if (found == labels.end()) {
    throw Error(fmt::format("{}: no {} along {}", array.name, label, axis));
  }
  std::vector<ResultAxis> axes = array.axes;
  axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(which));
  ResultArray result = without_values(array, std::move(axes));
  if (!array.terms.empty()) result.terms.resize(result.values.size());
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    std::vector<std::size_t> at = unravel(i, result.axes);
    at.insert(at.begin() + static_cast<std::ptrdiff_t>(which),
              static_cast<std::size_t>(found - labels.begin()));
    const std::size_t from = ravel(at, array.axes);
    result.values[i] = array.values[from];
    if (!array.terms.empty()) result.terms[i] = array.terms[from];
  }
  return result;
}

}  // namespace blockscope
