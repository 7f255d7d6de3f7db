#include "probe/verify/agreement.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace blockscope {
namespace {

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::map<int64_t, int64_t> transfers(const ReplayStep& step) {
  std::map<int64_t, int64_t> tokens;
  for (size_t i = 0; i < step.positions.size(); ++i) tokens[step.positions[i]] = step.tokens[i];
  return tokens;
}

/// The lowest position that only one of the two has, or that has different tokens.
std::optional<int64_t> lowest_difference(const std::map<int64_t, int64_t>& a,
                                         const std::map<int64_t, int64_t>& b) {
  std::optional<int64_t> lowest;
  const auto look = [&](const auto& from, const auto& in) {
    for (const auto& [position, token] : from) {
      const auto found = in.find(position);
      if (found != in.end() && found->second == token) continue;
      if (!lowest || position < *lowest) lowest = position;
    }
  };
  look(a, b);
  look(b, a);
  return lowest;
}

/// The lowest position that one of the steps inserts or deletes, if they differ in these.
std::optional<int64_t> lowest_move(const ReplayStep& a, const ReplayStep& b) {
  if (a.inserted == b.inserted && a.deleted == b.deleted) return std::nullopt;
  std::optional<int64_t> lowest;
  for (const auto* list : {&a.inserted, &b.inserted, &a.deleted, &b.deleted}) {
    for (const int64_t position : *list) lowest = std::min(lowest.value_or(position), position);
  }
  return lowest;
}

/// P(X <= k) for X ~ Binomial(n, 1/2), summed in the logarithm so that large n does not underflow.
double binomial_tail(int64_t k, int64_t n) {
  double total = 0.0;
  for (int64_t i = 0; i <= k; ++i) {
    const double x = static_cast<double>(i);
    const double m = static_cast<double>(n);
    total += std::exp(std::lgamma(m + 1) - std::lgamma(x + 1) - std::lgamma(m - x + 1) -
                      m * std::log(2.0));
  }
  return total;
}

/// Standard error of the mean, with n - 1 in the variance; 0 below two values.
double standard_error(double sum, double squares, int64_t count) {
  if (count < 2) return 0.0;
  const double n = static_cast<double>(count);
  const double variance = std::max(0.0, (squares - sum * sum / n) / (n - 1));
  return std::sqrt(variance / n);
}

}  // namespace

size_t answer_length(const std::vector<int64_t>& tokens, const std::vector<int64_t>& stop_ids) {
  const auto stop =
      std::find_first_of(tokens.begin(), tokens.end(), stop_ids.begin(), stop_ids.end());
  return static_cast<size_t>(stop - tokens.begin()) + (stop == tokens.end() ? 0 : 1);
}

double TokenAgreement::share_equal() const { return share(equal, positions); }
double TokenAgreement::share_identical() const { return share(identical, sequences); }

void compare_tokens(const std::vector<int64_t>& a, const std::vector<int64_t>& b,
                    const std::vector<int64_t>& stop_ids, TokenAgreement& agreement) {
  const size_t length_a = answer_length(a, stop_ids);
  const size_t length_b = answer_length(b, stop_ids);
  const size_t length = std::max(length_a, length_b);
  int64_t equal = 0;
  for (size_t i = 0; i < std::min(length_a, length_b); ++i) equal += a[i] == b[i];
  agreement.positions += static_cast<int64_t>(length);
  agreement.equal += equal;
  agreement.identical += equal == static_cast<int64_t>(length);
  ++agreement.sequences;
}

std::optional<Divergence> first_divergence(const std::vector<ReplayStep>& a,
                                           const std::vector<ReplayStep>& b,
                                           int64_t prompt_length) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const bool same_place = i < a.size() && i < b.size() && a[i].block == b[i].block;
    const auto of_a = i < a.size() ? transfers(a[i]) : std::map<int64_t, int64_t>{};
    const auto of_b = i < b.size() ? transfers(b[i]) : std::map<int64_t, int64_t>{};
    std::optional<int64_t> position = lowest_difference(of_a, of_b);
    if (!position && same_place) position = lowest_move(a[i], b[i]);
    if (same_place && !position) continue;
    return Divergence{static_cast<int64_t>(i) + 1,
                      position.value_or(prompt_length) - prompt_length};
  }
  return std::nullopt;
}

PairedScores paired_scores(const std::vector<double>& a, const std::vector<double>& b) {
  PairedScores scores;
  double sum_a = 0.0, sum_b = 0.0, squares_a = 0.0, squares_b = 0.0, squares_difference = 0.0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) continue;
    ++scores.count;
    scores.better += b[i] > a[i];
    scores.worse += b[i] < a[i];
    sum_a += a[i];
    sum_b += b[i];
    squares_a += a[i] * a[i];
    squares_b += b[i] * b[i];
    squares_difference += (b[i] - a[i]) * (b[i] - a[i]);
  }
  if (scores.count == 0) return scores;
  const double n = static_cast<double>(scores.count);
  scores.mean_a = sum_a / n;
  scores.mean_b = sum_b / n;
  scores.error_a = standard_error(sum_a, squares_a, scores.count);
  scores.error_b = standard_error(sum_b, squares_b, scores.count);
  scores.error_difference = standard_error(sum_b - sum_a, squares_difference, scores.count);
  const int64_t changed = scores.better + scores.worse;
  if (changed > 0) {
    const int64_t fewer = std::min(scores.better, scores.worse);
    scores.sign_test = std::min(1.0, 2.0 * binomial_tail(fewer, changed));
  }
  return scores;
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
  return {median, values.front(), values.back()};
}

double quantile_of(std::vector<float>& values, double quantile) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double place = quantile * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double weight = place - static_cast<double>(below);
  return (1.0 - weight) * static_cast<double>(values[below]) +
         weight * static_cast<double>(values[above]);
}

}  // namespace blockscope
