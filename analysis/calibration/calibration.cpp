// The choice, a pure function of CalibrationSums. calibration_pass.cpp fills the sums.
#include "analysis/calibration/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace blockscope {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The key that is compared with gamma. A head with NaN (not measured) never reuses.
double key_of(double similarity) { return std::isnan(similarity) ? -kInfinity : similarity; }

/// The decimal with the fewest digits in [low, high), which is not empty.
double shortest_in(double low, double high) {
  const double middle = low + (high - low) / 2.0;
  for (int digits = 1; digits <= 15; ++digits) {
    const double scale = std::pow(10.0, digits);
    const double rounded = std::round(middle * scale) / scale;
    if (rounded >= low && rounded < high) return rounded + 0.0;  // no "-0"
  }
  return low;
}

void check_pin(const CalibrationSums& sums, const ReusePin& pin) {
  if (pin.layer < 0 || pin.layer >= sums.model.layers || pin.head < 0 ||
      pin.head >= sums.model.heads) {
    throw UsageError(fmt::format("pins: expected a layer below {} and a head below {}, got {}, {}",
                                 sums.model.layers, sums.model.heads, pin.layer, pin.head));
  }
  const double similarity =
      sums.similarity[static_cast<std::size_t>(pin.layer)][static_cast<std::size_t>(pin.head)];
  if (pin.reuse && std::isnan(similarity)) {
    throw UsageError(fmt::format(
        "pins: layer {}, head {} shall reuse, but these traces did not record it, so the error is "
        "unknown. HINT: record this head, or remove the pin",
        pin.layer, pin.head));
  }
}

double share(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

}  // namespace

const TauSums& CalibrationSums::at(std::int64_t tau) const {
  const auto found = std::ranges::find(taus, tau, &TauSums::tau);
  if (found == taus.end()) {
    throw UsageError(fmt::format("tau: {} was not accumulated over the traces", tau));
  }
  return *found;
}

ReusePredictor::ReusePredictor(const CalibrationSums& sums, ReuseGranularity granularity,
                               const std::vector<ReusePin>& pins)
    : sums_(sums) {
  const auto heads = static_cast<std::size_t>(sums.model.heads);
  const auto group = static_cast<std::size_t>(sums.model.heads / sums.model.kv_heads);
  std::vector<double> keys;  // [layers * heads], H a multiple of the group's size
  for (const std::vector<double>& row : sums.similarity) {
    for (const double similarity : row) keys.push_back(key_of(similarity));
  }
  const auto least_of_group = [&](std::size_t first) {
    const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
    return *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(group));
  };
  for (std::size_t first = 0; first < keys.size(); first += group) {
    if (granularity == ReuseGranularity::head) break;
    std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(first), group, least_of_group(first));
  }
  for (const ReusePin& pin : pins) {
    check_pin(sums, pin);
    keys[static_cast<std::size_t>(pin.layer) * heads + static_cast<std::size_t>(pin.head)] =
        pin.reuse ? kInfinity : -kInfinity;
  }
  for (std::size_t first = 0; first < keys.size(); first += group) {
    group_keys_.push_back(least_of_group(first));
  }
  std::vector<std::size_t> order(keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return keys[i]; });
  for (const std::size_t i : order) keys_.push_back(keys[i]);
  std::ranges::sort(group_keys_, std::greater<>());
  for (const double key : keys_) {
    if (std::isfinite(key) && (levels_.empty() || key < levels_.back())) levels_.push_back(key);
  }
  std::ranges::reverse(levels_);
  for (const TauSums& tau : sums.taus) {
    Prefix prefix;
    for (const std::size_t i : order) {
      prefix.squared.push_back(prefix.squared.back() + tau.reused[i].squared);
      prefix.absolute.push_back(prefix.absolute.back() + tau.reused[i].absolute);
      prefix.reference.push_back(prefix.reference.back() + tau.reused[i].reference);
      prefix.terms.push_back(prefix.terms.back() + tau.reused[i].terms);
      prefix.reference_all += tau.reused[i].reference + tau.recomputed[i].reference;
    }
    prefixes_.emplace(tau.tau, std::move(prefix));
  }
}

ReusePoint ReusePredictor::at(double gamma, std::int64_t tau) const {
  const TauSums& sums = sums_.at(tau);
  const Prefix& prefix = prefixes_.at(tau);
  const auto above = [gamma](const std::vector<double>& falling) {
    return static_cast<std::size_t>(std::ranges::lower_bound(falling, gamma, std::greater<>()) -
                                    falling.begin());
  };
  const std::size_t heads = above(keys_);
  const std::size_t groups = above(group_keys_);
  ReusePoint point;
  point.gamma = gamma;
  point.heads = static_cast<std::int64_t>(heads);
  point.byte_saving = share(sums.reusing_keys, sums_.keys) *
                      share(static_cast<double>(groups), static_cast<double>(group_keys_.size()));
  point.flop_saving = share(sums.reusing_flops, sums_.flops) *
                      share(static_cast<double>(heads), static_cast<double>(keys_.size()));
  if (!sums.errors_known) return point;
  const auto channels = static_cast<double>(sums_.head_dim);
  const auto l2 = [&](double reference) { return std::sqrt(prefix.squared[heads] / reference); };
  const auto l1 = [&](std::int64_t terms) {
    return prefix.absolute[heads] / (static_cast<double>(terms) * channels);
  };
  point.terms = prefix.terms.back();
  if (point.terms > 0) {
    point.relative_l2 = l2(prefix.reference.back());
    point.mean_l1 = l1(point.terms);
  }
  point.terms_reused = prefix.terms[heads];
  if (point.terms_reused > 0) {
    point.relative_l2_reused = l2(prefix.reference[heads]);
    point.mean_l1_reused = l1(point.terms_reused);
  }
  if (prefix.reference_all > 0.0) {
    point.relative_l2_all_steps = l2(prefix.reference_all);
  }
  return point;
}

ReusePrediction ReusePredictor::predict(double gamma, std::int64_t tau) const {
  const TauSums& sums = sums_.at(tau);
  ReusePrediction prediction;
  prediction.point = at(gamma, tau);
  prediction.steps = sums_.steps;
  prediction.reusing_steps = sums.reusing_steps;
  const auto kv_heads = static_cast<double>(group_keys_.size());
  const auto spared = static_cast<double>(
      std::ranges::count_if(group_keys_, [gamma](double key) { return key > gamma; }));
  prediction.external_keys = std::llround(sums_.keys * kv_heads);
  prediction.external_keys_read = std::llround(sums_.keys * kv_heads - sums.reusing_keys * spared);
  return prediction;
}

/// Heads reuse iff key > gamma, so all gammas in [levels[i - 1], levels[i]) give the same heads.
double ReusePredictor::gamma_of_interval(std::size_t interval) const {
  if (levels_.empty() || interval == levels_.size()) {
    // No head reuses: take the smallest round gamma at or above the largest similarity.
    if (levels_.empty()) return 1.0;
    const double top = levels_.back();
    return top >= 1.0 ? 1.0 : shortest_in(top, std::nextafter(1.0, 2.0));
  }
  const double low = interval == 0 ? -1.0 : levels_[interval - 1];
  return shortest_in(low, levels_[interval]);
}

std::vector<double> ReusePredictor::gammas(std::size_t most) const {
  // If the lowest level is -1, the first interval holds no gamma in [-1, 1].
  const std::size_t first = !levels_.empty() && levels_.front() <= -1.0 ? 1 : 0;
  const std::size_t count = num_intervals() - first;
  const std::size_t points = std::min(std::max<std::size_t>(most, 2), count);
  std::vector<double> gammas;
  for (std::size_t i = 0; i < points; ++i) {
    const std::size_t interval = points == 1 ? 0 : i * (count - 1) / (points - 1);
    gammas.push_back(gamma_of_interval(first + interval));
  }
  return gammas;
}

ReuseCurve ReusePredictor::curve(std::int64_t tau, std::size_t most) const {
  ReuseCurve curve{tau, {}};
  for (const double gamma : gammas(most)) curve.points.push_back(at(gamma, tau));
  return curve;
}

std::optional<double> ReusePredictor::gamma_for_saving(double saving, std::int64_t tau) const {
  std::optional<double> largest;
  for (const double gamma : gammas(num_intervals())) {  // savings fall as gamma rises
    if (at(gamma, tau).byte_saving < saving) break;
    largest = gamma;
  }
  return largest;
}

std::optional<double> ReusePredictor::gamma_for_error(double error, std::int64_t tau) const {
  for (const double gamma : gammas(num_intervals())) {
    const ReusePoint point = at(gamma, tau);
    if (point.relative_l2_reused <= error) return gamma;  // false for NaN: no head reuses
  }
  return std::nullopt;
}

}  // namespace blockscope
