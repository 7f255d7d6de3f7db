#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "analysis/calibration/calibration.h"

namespace blockscope {
namespace {

/// Rounds up to six digits, so that the printed value is not below the true one.
double rounded_up(double value) {
  const double unit = std::pow(10.0, std::floor(std::log10(std::max(value, 1e-300))) - 5.0);
  return std::ceil(value / unit) * unit;
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100.0 * share); }

/// The saving of each tau if every head reuses.
std::string savings_in_reach(const CalibrationSums& sums, const ReusePredictor& predictor) {
  std::string list;
  for (const TauSums& tau : sums.taus) {
    list += fmt::format("{}{} with --tau {}", list.empty() ? "" : ", ",
                        percent(predictor.at(-1.0, tau.tau).byte_saving), tau.tau);
  }
  return list;
}

double gamma_for_saving(const CalibrationSums& sums, const ReusePredictor& predictor, double saving,
                        std::int64_t tau) {
  if (const auto gamma = predictor.gamma_for_saving(saving, tau)) return *gamma;
  const TauSums& at = sums.at(tau);
  throw UsageError(fmt::format(
      "--saving: {} of the prefix bytes can't be saved with tau {}. Only {} of {} denoising steps "
      "come after fewer than {} counted tokens, and reuse in every measured head saves at most {}. "
      "HINT: "
      "possible savings are {}",
      percent(saving), tau, at.reusing_steps, sums.steps, tau,
      percent(predictor.at(-1.0, tau).byte_saving), savings_in_reach(sums, predictor)));
}

double gamma_for_error(const CalibrationSums& sums, const ReusePredictor& predictor, double error,
                       std::int64_t tau) {
  const TauSums& at = sums.at(tau);
  if (!at.errors_known) {
    throw UsageError(fmt::format(
        "--max-error: these traces don't have the error at tau {}; summaries have tau 2, 3 and 4. "
        "HINT: capture with `--record outputs`",
        tau));
  }
  if (predictor.at(-1.0, tau).terms == 0) {
    throw UsageError(fmt::format(
        "--max-error: no recorded step changes fewer than {} tokens, so tau {} never reuses and "
        "there is no error to bound. HINT: choose a larger --tau",
        tau, tau));
  }
  if (const auto gamma = predictor.gamma_for_error(error, tau)) return *gamma;
  double least = std::numeric_limits<double>::infinity();
  double at_gamma = 1.0;
  for (const ReusePoint& point :
       predictor.curve(tau, std::numeric_limits<std::size_t>::max()).points) {
    if (point.relative_l2_reused < least) {  // false for NaN: no head reuses
      least = point.relative_l2_reused;
      at_gamma = point.gamma;
    }
  }
  if (std::isinf(least)) {
    throw UsageError(
        fmt::format("--max-error: the error at tau {} is unknown for every head with a similarity. "
                    "HINT: use --gamma",
                    tau));
  }
  throw UsageError(fmt::format(
      "--max-error: with tau {1}, no gamma that lets a head reuse keeps the relative L2 error "
      "where reused within {0}. The smallest error is {2:.6g}, at --gamma {3}. HINT: choose a "
      "smaller --tau, or that error",
      error, tau, rounded_up(least), at_gamma));
}

SampleTrust trust_of(const CalibrationSums& sums, const Calibration& chosen) {
  SampleTrust trust;
  trust.largest_error = kNotMeasured;
  trust.fewest_pairs = std::numeric_limits<std::int64_t>::max();
  const auto within = within_bound(sums.similarity, sums.lse_drift, chosen.lse_bound);
  const auto add = [&](std::size_t range, std::size_t layer, std::size_t head) {
    const double similarity = sums.similarity[range][layer][head];
    if (std::isnan(similarity)) return;
    const double error = sums.standard_error[range][layer][head];
    ++trust.measured;
    trust.fewest_pairs = std::min(trust.fewest_pairs, sums.count[range][layer][head]);
    if (!std::isnan(error)) trust.largest_error = std::fmax(trust.largest_error, error);
    const bool pinned = std::ranges::any_of(chosen.pins, [&](const ReusePin& pin) {
      return std::cmp_equal(pin.layer, layer) && std::cmp_equal(pin.head, head);
    });
    const bool gamma_decides = !pinned && !sums.ranked && !std::isnan(within[range][layer][head]);
    // `!(a >= b)` is also true for a single pair, which has no standard error.
    if (gamma_decides && !(std::fabs(similarity - chosen.gamma[range]) >= 2.0 * error))
      ++trust.undecided;
  };
  for (std::size_t range = 0; range < within.size(); ++range) {
    for (std::size_t layer = 0; layer < within[range].size(); ++layer) {
      for (std::size_t head = 0; head < within[range][layer].size(); ++head) {
        add(range, layer, head);
      }
    }
  }
  return trust;
}

}  // namespace

void check_request(const CalibrationRequest& request) {
  const int given = (request.gamma || !request.gammas.empty() ? 1 : 0) + (request.saving ? 1 : 0) +
                    (request.max_error ? 1 : 0);
  if (given != 1) {
    throw UsageError(fmt::format(
        "calibrate: expected exactly one of --gamma, --saving and --max-error, got {}", given));
  }
  const auto refuse = [](const char* flag, const char* expected, double got) {
    throw UsageError(fmt::format("{}: expected {}, got {}", flag, expected, got));
  };
  std::vector<double> gammas = request.gammas;
  if (request.gamma) gammas.push_back(*request.gamma);
  for (const double gamma : gammas) {
    if (!(gamma >= -1.0 && gamma <= 1.0)) refuse("--gamma", "a cosine from -1 to 1", gamma);
  }
  if (request.lse_bound && !(*request.lse_bound >= 0.0 && std::isfinite(*request.lse_bound))) {
    refuse("--lse-bound", "a difference of L_out of at least 0", *request.lse_bound);
  }
  if (request.saving && !(*request.saving > 0.0 && *request.saving <= 1.0)) {
    refuse("--saving", "a share of the prefix bytes above 0 and at most 1", *request.saving);
  }
  if (request.max_error && !(*request.max_error >= 0.0 && std::isfinite(*request.max_error))) {
    refuse("--max-error", "a relative L2 error of at least 0", *request.max_error);
  }
}

Calibration choose(const CalibrationSums& sums, const CalibrationRequest& request) {
  check_request(request);
  const std::size_t ranges = sums.ranges.size();
  if (!request.gammas.empty() && request.gammas.size() != ranges) {
    throw UsageError(fmt::format("--gamma: expected one for each of {} ranges of steps, got {}",
                                 ranges, request.gammas.size()));
  }
  const ReusePredictor predictor(sums, request.granularity, request.pins, request.lse_bound);
  Calibration chosen;
  chosen.tau = request.tau;
  chosen.granularity = request.granularity;
  chosen.pins = request.pins;
  chosen.lse_bound = request.lse_bound;
  if (!request.gammas.empty()) {
    chosen.gamma = request.gammas;
  } else {
    chosen.gamma.assign(ranges,
                        request.gamma ? *request.gamma
                        : request.saving
                            ? gamma_for_saving(sums, predictor, *request.saving, request.tau)
                            : gamma_for_error(sums, predictor, *request.max_error, request.tau));
  }
  chosen.reuse.ranges = sums.ranges;
  const auto within = within_bound(sums.similarity, sums.lse_drift, request.lse_bound);
  for (std::size_t range = 0; range < ranges; ++range) {
    chosen.reuse.heads.push_back(reuse_mask(within[range], chosen.gamma[range], request.granularity,
                                            sums.model, request.pins));
  }
  chosen.predicted = predictor.predict(chosen.gamma, request.tau);
  chosen.trust = trust_of(sums, chosen);
  return chosen;
}

std::vector<std::string> warnings_of(const Calibration& chosen) {
  std::vector<std::string> warnings;
  const SampleTrust& trust = chosen.trust;
  const ReusePrediction& predicted = chosen.predicted;
  if (trust.undecided > 0) {
    warnings.push_back(fmt::format(
        "gamma {} lies within 2 standard errors of the similarity of {} of {} heads{} (largest "
        "standard error {}, fewest step pairs {}): another sample may decide differently. HINT: "
        "use more prompts, or a gamma with more distance",
        gamma_text(chosen), trust.undecided, trust.measured,
        chosen.gamma.size() > 1 ? " and ranges of steps" : "",
        std::isnan(trust.largest_error) ? "-" : fmt::format("{:.3g}", trust.largest_error),
        trust.fewest_pairs));
  }
  const char* pins = chosen.pins.empty() ? "" : ", with the pins";
  if (predicted.point.heads == 0) {
    warnings.push_back(fmt::format(
        "no head has a similarity above {}{}{}: nothing will be reused", gamma_text(chosen),
        chosen.lse_bound ? fmt::format(" and a drift of at most {:.6g}", *chosen.lse_bound) : "",
        pins));
  } else if (predicted.external_keys_read == predicted.external_keys &&
             predicted.reusing_steps > 0) {
    warnings.push_back(
        fmt::format("no KV head has all of its query heads above gamma{}: every prefix byte is "
                    "still read. HINT: use --saving, or a smaller gamma",
                    pins));
  } else if (predicted.reusing_steps == 0) {
    warnings.push_back(
        fmt::format("every step of these traces decides {} or more tokens: tau {} never reuses",
                    chosen.tau, chosen.tau));
  }
  return warnings;
}

std::string gamma_text(const Calibration& calibration) {
  const std::vector<double>& gammas = calibration.gamma;
  const bool one = std::ranges::count(gammas, gammas.front()) == std::ssize(gammas);
  return one ? fmt::format("{:.6g}", gammas.front())
             : fmt::format("{:.6g}", fmt::join(gammas, ", "));
}

std::vector<RowErrors> row_errors_of(const CalibrationSums& sums, const ReuseMasks& masks,
                                     std::int64_t tau) {
  std::vector<RowErrors> errors;
  const auto heads = static_cast<std::size_t>(sums.model.heads);
  for (std::size_t range = 0; range < sums.ranges.size(); ++range) {
    const auto& rows = sums.at(tau).ranges[range].rows;
    if (rows.front().empty()) return {};
    RowErrors& of_range = errors.emplace_back();
    for (std::size_t kind = 0; kind < rows.size(); ++kind) {
      double squared = 0.0;
      double reference = 0.0;
      for (std::size_t i = 0; i < rows[kind].size(); ++i) {
        if (masks.heads[range][i / heads][i % heads]) squared += rows[kind][i].squared;
        reference += rows[kind][i].reference;
      }
      of_range[kind] = reference > 0.0 ? squared / reference : kNotMeasured;
    }
  }
  return errors;
}

ReuseFile to_reuse_file(const CalibrationSums& sums, const Calibration& calibration) {
  const ReusePredictor predictor(sums, calibration.granularity, calibration.pins,
                                 calibration.lse_bound);
  ReuseFile file;
  file.model = sums.model;
  file.reuse = calibration.reuse;
  file.pins = calibration.pins;
  file.gamma = calibration.gamma;
  file.tau = calibration.tau;
  file.tau_counts = sums.tau_counts;
  file.reference = sums.reference;
  file.lse_bound = calibration.lse_bound;
  if (file.lse_bound) file.lse_drift = sums.lse_drift;
  file.granularity = calibration.granularity;
  file.statistic = sums.statistic;
  file.computed_from = sums.computed_from;
  file.traces = sums.traces;
  file.similarity = sums.similarity;
  file.standard_deviation = sums.standard_deviation;
  file.standard_error = sums.standard_error;
  file.p5 = sums.p5;
  file.count = sums.count;
  file.row_errors = row_errors_of(sums, calibration.reuse, calibration.tau);
  file.predicted = calibration.predicted;
  for (const TauSums& tau : sums.taus) file.curves.push_back(predictor.curve(tau.tau));
  return file;
}

}  // namespace blockscope
