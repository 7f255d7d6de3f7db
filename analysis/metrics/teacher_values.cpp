#include "analysis/metrics/teacher_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace blockscope {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What one pair of vectors has.
struct VectorDifference {
  double range = 0.0, largest = 0.0;
  std::int64_t different = 0;
  std::size_t at = 0;     // of the largest difference relative to the range
  bool only_one = false;  // not a number throughout, in one of both
  bool endless = false;   // a difference that is not finite

  double relative() const {
    if (endless) return kInfinity;
    if (largest == 0.0) return 0.0;
    return range > 0.0 ? largest / range : kInfinity;
  }
};

double range_of(TeacherRange kind, double largest_value) {
  if (kind == TeacherRange::one) return 1.0;
  if (kind == TeacherRange::log) return std::max(1.0, largest_value);
  return largest_value;
}

bool all_nan(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isnan(value); });
}

/// Handles NaN and infinities; counts and finds the largest difference.
VectorDifference look_closely(std::span<const float> a, std::span<const float> b,
                              const ValueRules& rules) {
  VectorDifference found;
  const bool none_a = all_nan(a);
  const bool none_b = all_nan(b);
  found.only_one = none_a != none_b;
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const float value : {a[i], b[i]}) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
  }
  found.range = range_of(rules.range, largest);
  double worst = -1.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    const bool finite = std::isfinite(difference);
    if (finite) found.largest = std::max(found.largest, difference);
    if (!finite || difference > rules.tolerance * found.range) {
      ++found.different;
      found.endless = found.endless || !finite;
      const double size = finite ? difference : kInfinity;
      if (size > worst) worst = size, found.at = i;
    }
  }
  return found;
}

/// The common case: all finite and equal within the tolerance. nullopt: look closely.
std::optional<VectorDifference> look_quickly(std::span<const float> a, std::span<const float> b,
                                             const ValueRules& rules) {
  float largest = 0.0F;
  float worst = 0.0F;
  float sum = 0.0F;  // NaN or infinite if any difference is
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    largest = std::max(largest, std::max(std::abs(a[i]), std::abs(b[i])));
    worst = std::max(worst, difference);
    sum += difference;
  }
  const double range = range_of(rules.range, largest);
  if (!std::isfinite(sum) || worst > rules.tolerance * range) return std::nullopt;
  VectorDifference found;
  found.range = range;
  found.largest = worst;
  return found;
}

std::vector<std::int32_t> sorted(std::span<const std::int32_t> values) {
  std::vector<std::int32_t> result(values.begin(), values.end());
  std::ranges::sort(result);
  return result;
}

/// The place of an expert among those chosen; -1: not chosen.
std::ptrdiff_t place_of(std::span<const std::int32_t> experts, std::int32_t expert) {
  const auto at = std::ranges::find(experts, expert);
  return at == experts.end() ? -1 : at - experts.begin();
}

void count_gap(double gap, ExpertGaps& gaps) {
  if (std::isnan(gap)) {
    ++gaps.unknown;
    return;
  }
  const auto bin = std::ranges::lower_bound(kTieGaps, gap) - kTieGaps.begin();
  ++gaps.gaps[static_cast<std::size_t>(bin)];
}

}  // namespace

std::optional<TeacherDifference> TeacherValues::compare(const LayerArray<float>& a,
                                                        const LayerArray<float>& b,
                                                        std::span<const SharedHead> heads,
                                                        const ValueRules& rules,
                                                        TeacherCounts& counts) const {
  std::optional<TeacherDifference> first;
  for (std::size_t p = 0; p < valid_.size(); ++p) {
    if (valid_[p] == 0) continue;
    for (const SharedHead& head : heads) {
      const auto here = a.vector(head.a, p);
      const auto there = b.vector(head.b, p);
      std::optional<VectorDifference> found = look_quickly(here, there, rules);
      if (!found) {
        if (all_nan(here) && all_nan(there)) continue;  // not recorded
        found = look_closely(here, there, rules);
        if (found->only_one && rules.may_be_left_out) continue;
      }
      counts.elements += static_cast<std::int64_t>(here.size());
      counts.different += found->different;
      counts.largest = std::max(counts.largest, found->largest);
      counts.largest_relative = std::max(counts.largest_relative, found->relative());
      if (found->different == 0 || first) continue;
      first.emplace();
      first->place = row_;
      first->place.position = static_cast<std::int64_t>(p);
      first->place.head = head.head;
      if (a.channels > 1) first->place.channel = static_cast<std::int64_t>(found->at);
      first->a = here[found->at];
      first->b = there[found->at];
      first->relative = found->relative();
    }
  }
  return first;
}

std::optional<TeacherDifference> TeacherValues::experts(const LayerArray<std::int32_t>& a,
                                                        const LayerArray<std::int32_t>& b,
                                                        const LayerArray<float>& weights_a,
                                                        const LayerArray<float>& weights_b,
                                                        TeacherCounts& counts,
                                                        ExpertGaps& gaps) const {
  std::optional<TeacherDifference> first;
  for (std::size_t p = 0; p < valid_.size(); ++p) {
    if (valid_[p] == 0) continue;
    const auto here = a.vector(0, p);
    const auto there = b.vector(0, p);
    if (here.front() < 0 && there.front() < 0) continue;  // a layer without experts
    ++counts.elements;
    ++gaps.tokens;
    std::vector<std::int32_t> set_a = sorted(here);
    std::vector<std::int32_t> set_b = sorted(there);
    if (set_a == set_b) continue;
    ++counts.different;
    ++gaps.different;
    for (const std::int32_t expert : set_a) gaps.swapped += place_of(there, expert) < 0 ? 1 : 0;
    const bool known = !weights_a.empty() && !weights_b.empty();
    const double gap =
        known ? tie_gap(here, there, weights_a.vector(0, p), weights_b.vector(0, p)) : kNan;
    count_gap(gap, gaps);
    if (std::isfinite(gap)) {
      counts.largest = std::max(counts.largest, gap);
      counts.largest_relative = std::max(counts.largest_relative, gap);
    }
    if (first) continue;
    first.emplace();
    first->place = row_;
    first->place.position = static_cast<std::int64_t>(p);
    first->a = first->b = kNan;
    first->relative = gap;
    first->experts_a = std::move(set_a);
    first->experts_b = std::move(set_b);
  }
  return first;
}

std::optional<TeacherDifference> TeacherValues::router_weights(const LayerArray<std::int32_t>& a,
                                                               const LayerArray<std::int32_t>& b,
                                                               const LayerArray<float>& weights_a,
                                                               const LayerArray<float>& weights_b,
                                                               double tolerance,
                                                               TeacherCounts& counts) const {
  std::optional<TeacherDifference> first;
  for (std::size_t p = 0; p < valid_.size(); ++p) {
    if (valid_[p] == 0) continue;
    const auto here = a.vector(0, p);
    const auto there = b.vector(0, p);
    if (here.front() < 0 || sorted(here) != sorted(there)) continue;
    const auto mine = weights_a.vector(0, p);
    const auto theirs = weights_b.vector(0, p);
    std::vector<float> matched(mine.size());  // B's weights in the order of A's experts
    for (std::size_t i = 0; i < here.size(); ++i) {
      matched[i] = theirs[static_cast<std::size_t>(place_of(there, here[i]))];
    }
    if (all_nan(mine) && all_nan(matched)) continue;
    const VectorDifference found =
        look_closely(mine, matched, {tolerance, TeacherRange::vector, false});
    counts.elements += static_cast<std::int64_t>(mine.size());
    counts.different += found.different;
    counts.largest = std::max(counts.largest, found.largest);
    counts.largest_relative = std::max(counts.largest_relative, found.relative());
    if (found.different == 0 || first) continue;
    first.emplace();
    first->place = row_;
    first->place.position = static_cast<std::int64_t>(p);
    first->a = mine[found.at];
    first->b = matched[found.at];
    first->relative = found.relative();
    first->experts_a = first->experts_b = {here[found.at]};
  }
  return first;
}

LayerArray<float> merged_output(const LayerArray<float>& external,
                                const LayerArray<float>& internal,
                                const LayerArray<float>& lse_external,
                                const LayerArray<float>& lse_internal) {
  LayerArray<float> merged = internal;
  for (std::size_t v = 0; v < lse_internal.values.size(); ++v) {
    const double out = lse_external.values[v];
    const double in = lse_internal.values[v];
    const double top = std::max(out, in);
    const double weight_out = std::exp(out - top);
    const double weight_in = std::exp(in - top);
    for (std::size_t c = 0; c < merged.channels; ++c) {
      const std::size_t at = v * merged.channels + c;
      const double other = std::isnan(external.values[at]) ? 0.0 : external.values[at];
      merged.values[at] = static_cast<float>(
          (weight_out * other + weight_in * internal.values[at]) / (weight_out + weight_in));
    }
  }
  return merged;
}

/// Experts that only one trace chose, paired by falling weight, were on either side of the bound:
/// without a difference between the traces, each pair's two weights would be equal. If a trace
/// gives one of them more than an expert that both chose, the other trace disagrees about these
/// two as well.
double tie_gap(std::span<const std::int32_t> a, std::span<const std::int32_t> b,
               std::span<const float> weights_a, std::span<const float> weights_b) {
  std::vector<double> only_a;
  std::vector<double> only_b;
  double least_a = kInfinity;  // weights of experts that both chose
  double least_b = kInfinity;
  const auto split = [](std::span<const std::int32_t> mine, std::span<const std::int32_t> theirs,
                        std::span<const float> weights, std::vector<double>& only, double& least) {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (std::isnan(weights[i])) return false;
      if (place_of(theirs, mine[i]) < 0) {
        only.push_back(weights[i]);
      } else {
        least = std::min(least, static_cast<double>(weights[i]));
      }
    }
    std::ranges::sort(only, std::greater<>());
    return true;
  };
  if (!split(a, b, weights_a, only_a, least_a) || !split(b, a, weights_b, only_b, least_b)) {
    return kNan;
  }
  double gap = 0.0;
  const auto widen = [&](double one, double other) {
    const double larger = std::max(std::abs(one), std::abs(other));
    if (larger > 0.0) gap = std::max(gap, std::abs(one - other) / larger);
  };
  for (std::size_t i = 0; i < std::min(only_a.size(), only_b.size()); ++i) {
    widen(only_a[i], only_b[i]);
  }
  for (const double weight : only_a) {
    if (weight > least_a) widen(weight, least_a);
  }
  for (const double weight : only_b) {
    if (weight > least_b) widen(weight, least_b);
  }
  return gap;
}

}  // namespace blockscope
