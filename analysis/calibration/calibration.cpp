// The choice, a pure function of CalibrationSums. calibration_pass.cpp fills the sums.
#include "analysis/calibration/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

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
  const auto measured = [&](const HeadMatrix<double>& matrix) {
    return !std::isnan(
        matrix[static_cast<std::size_t>(pin.layer)][static_cast<std::size_t>(pin.head)]);
  };
  if (pin.reuse && std::ranges::none_of(sums.similarity, measured)) {
    throw UsageError(fmt::format(
        "pins: layer {}, head {} shall reuse, but these traces did not record it, so the error is "
        "unknown. HINT: record this head, or remove the pin",
        pin.layer, pin.head));
  }
}

/// The number of keys above gamma.
std::size_t above(const std::vector<double>& falling, double gamma) {
  return static_cast<std::size_t>(std::ranges::lower_bound(falling, gamma, std::greater<>()) -
                                  falling.begin());
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
                               const std::vector<ReusePin>& pins,
                               const std::optional<double>& lse_bound)
    : sums_(sums) {
  if (lse_bound && sums.lse_drift.empty()) {
    throw UsageError(
        "--lse-bound: expected the drift of L_out, got summaries, which lack it. HINT: capture "
        "with "
        "`--record outputs`");
  }
  const auto heads = static_cast<std::size_t>(sums.model.heads);
  const RangeMatrices<double> similarity = within_bound(sums.similarity, sums.lse_drift, lse_bound);
  num_heads_ = static_cast<std::size_t>(sums.model.layers) * heads;
  keys_.resize(num_heads_ * similarity.size());
  for (const ReusePin& pin : pins) check_pin(sums, pin);
  for (std::size_t range = 0; range < similarity.size(); ++range) {
    HeadMatrix<double>& of_heads = head_keys_.emplace_back();
    HeadMatrix<double>& of_groups = group_keys_.emplace_back();
    for (std::size_t layer = 0; layer < similarity[range].size(); ++layer) {
      const auto index = static_cast<std::int64_t>(layer);
      const auto group = static_cast<std::size_t>(sums.sizes.group_size(index));
      std::vector<double> keys;
      for (const double value : similarity[range][layer]) keys.push_back(key_of(value));
      const auto least_of_group = [&](std::size_t first) {
        const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
        return *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(group));
      };
      for (std::size_t first = 0; first < keys.size(); first += group) {
        if (granularity == ReuseGranularity::head) break;
        std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(first), group,
                    least_of_group(first));
      }
      for (const ReusePin& pin : pins) {
        if (pin.layer != index) continue;
        keys[static_cast<std::size_t>(pin.head)] = pin.reuse ? kInfinity : -kInfinity;
      }
      std::vector<double>& groups = of_groups.emplace_back();
      for (std::size_t first = 0; first < keys.size(); first += group) {
        groups.push_back(least_of_group(first));
      }
      for (std::size_t i = 0; i < keys.size(); ++i) {
        keys_[(layer * heads + i) * similarity.size() + range] = keys[i];
      }
      std::ranges::sort(groups, std::greater<>());
      std::ranges::sort(keys, std::greater<>());
      of_heads.push_back(std::move(keys));
    }
  }
  for (std::size_t layer = 0; layer < sums.keys.size(); ++layer) {
    const auto index = static_cast<std::int64_t>(layer);
    const auto channels = static_cast<double>(sums.sizes.head_dim_of(index));
    bytes_ += sums.keys[layer] * channels * static_cast<double>(sums.sizes.kv_heads_of(index));
    flops_ += sums.flops[layer] * channels * static_cast<double>(heads);
  }
  for (const double key : keys_) {
    if (std::isfinite(key)) levels_.push_back(key);
  }
  std::ranges::sort(levels_);
  levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
}

std::int64_t ReusePredictor::heads(const std::vector<double>& gammas) const {
  std::size_t count = 0;
  for (std::size_t r = 0; r < gammas.size(); ++r) {
    for (const std::vector<double>& layer : head_keys_[r]) count += above(layer, gammas[r]);
  }
  return static_cast<std::int64_t>(count);
}

ReusePoint ReusePredictor::at(double gamma, std::int64_t tau) const {
  return at(std::vector<double>(sums_.ranges.size(), gamma), tau);
}

ReusePoint ReusePredictor::at(const std::vector<double>& gammas, std::int64_t tau) const {
  const TauSums& sums = sums_.at(tau);
  const std::size_t ranges = sums.ranges.size();
  ReusePoint point;
  point.gamma = gammas.front();
  double bytes = 0.0;
  double flops = 0.0;
  for (std::size_t r = 0; r < ranges; ++r) {
    for (std::size_t layer = 0; layer < head_keys_[r].size(); ++layer) {
      const std::size_t heads = above(head_keys_[r][layer], gammas[r]);
      const std::size_t groups = above(group_keys_[r][layer], gammas[r]);
      const auto channels =
          static_cast<double>(sums_.sizes.head_dim_of(static_cast<std::int64_t>(layer)));
      point.heads += static_cast<std::int64_t>(heads);
      bytes += sums.ranges[r].reusing_keys[layer] * static_cast<double>(groups) * channels;
      flops += sums.ranges[r].reusing_flops[layer] * static_cast<double>(heads) * channels;
    }
  }
  point.byte_saving = share(bytes, bytes_);
  point.flop_saving = share(flops, flops_);
  if (!sums.errors_known) return point;
  ReuseErrorSums reused, steps;  // where heads reuse; at all steps that may reuse
  double reference_all = 0.0;
  for (std::size_t head = 0; head < num_heads_; ++head) {
    std::size_t source = 0;  // of RangeSums::reused
    for (std::size_t r = 0; r < ranges; ++r) {
      const RangeSums& range = sums.ranges[r];
      const bool reuses = keys_[head * ranges + r] > gammas[r];
      const ReuseErrorSums& taken = range.reused[reuses ? source : 0][head];
      steps.add(taken);
      if (reuses) {
        reused.add(taken);
      } else {
        source = r + 1;
      }
      reference_all += taken.reference + range.recomputed[head].reference;
    }
  }
  const auto l2 = [&](double reference) { return std::sqrt(reused.squared / reference); };
  point.terms = steps.terms;
  if (point.terms > 0) {
    point.relative_l2 = l2(steps.reference);
    point.mean_l1 = reused.absolute / static_cast<double>(steps.values);
  }
  point.terms_reused = reused.terms;
  if (point.terms_reused > 0) {
    point.relative_l2_reused = l2(reused.reference);
    point.mean_l1_reused = reused.mean_l1();
  }
  if (reference_all > 0.0) point.relative_l2_all_steps = l2(reference_all);
  return point;
}

ReusePrediction ReusePredictor::predict(const std::vector<double>& gammas, std::int64_t tau) const {
  const TauSums& sums = sums_.at(tau);
  ReusePrediction prediction;
  prediction.point = at(gammas, tau);
  prediction.steps = sums_.steps;
  prediction.reusing_steps = sums.reusing_steps;
  double keys = 0.0;
  double spared = 0.0;
  for (std::size_t layer = 0; layer < sums_.keys.size(); ++layer) {
    keys += sums_.keys[layer] *
            static_cast<double>(sums_.sizes.kv_heads_of(static_cast<std::int64_t>(layer)));
    for (std::size_t r = 0; r < sums.ranges.size(); ++r) {
      spared += sums.ranges[r].reusing_keys[layer] *
                static_cast<double>(above(group_keys_[r][layer], gammas[r]));
    }
  }
  prediction.external_keys = std::llround(keys);
  prediction.external_keys_read = std::llround(keys - spared);
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
