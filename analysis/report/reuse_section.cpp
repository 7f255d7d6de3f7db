#include "analysis/report/reuse_section.h"

#include <fmt/format.h>

#include "analysis/calibration/calibration.h"
#include "analysis/report/html.h"
#include "analysis/report/report_metrics.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::int64_t kDefaultTau = 2;  ///< default of `blockscope calibrate`
constexpr double kSaving = 0.5;  ///< share of the prefix bytes that the finding aims to save
constexpr std::size_t kPointsPerCurve = 60;  ///< finer than the picture

std::string percent(double share) { return fmt::format("{:.0f} %", 100.0 * share); }

std::string finding_text(const CalibrationSums& sums, const ReusePredictor& predictor) {
  const std::string steps = counted(sums.steps, "step", "steps");
  if (sums.at(kDefaultTau).reusing_steps == 0) {
    return fmt::format(
        "No step can reuse A_out at \u03c4 = {}: at least {} positions changed before every step "
        "(n = {}).",
        kDefaultTau, kDefaultTau, steps);
  }
  const ReusePoint all = predictor.at(-1.0, kDefaultTau);
  const std::string whole = fmt::format(
      "reuse in every head would save {} of the prefix\u2019s bytes at an error where reused of {}",
      percent(all.byte_saving), report_number(all.relative_l2_reused, 3));
  const auto gamma = predictor.gamma_for_saving(kSaving, kDefaultTau);
  if (!gamma) {
    return fmt::format(
        "Predicted for reuse of A_out at \u03c4 = {}: {}. Errors are relative L2 of the attention "
        "output, one step ahead (n = {}).",
        kDefaultTau, whole, steps);
  }
  const ReusePoint point = predictor.at(*gamma, kDefaultTau);
  return fmt::format(
      "Predicted for reuse of A_out in the {} with a similarity above \u03b3 = {:g}, at \u03c4 = "
      "{}: it would save {} of the prefix\u2019s bytes. The error of the attention output would be "
      "{} where reused, and {} over all heads and steps (relative L2, one step ahead). In "
      "comparison, {} (n = {}).",
      counted(point.heads, "head", "heads"), *gamma, kDefaultTau, percent(point.byte_saving),
      report_number(point.relative_l2_reused, 3), report_number(point.relative_l2_all_steps, 3),
      whole, steps);
}

}  // namespace

ReuseResults predict_reuse(const TraceGroup& traces, const PassOptions& options) {
  ReuseResults results;
  if (lowest_level(traces) < RecordLevel::summary) {
    results.missing = fmt::format(
        "The \u03b3 curve is missing. It needs --record summary, and this trace was recorded with "
        "--record {}.",
        to_string(lowest_level(traces)));
    return results;
  }
  try {
    CalibrationOptions calibration;
    calibration.taus = {2, 3, 4};
    calibration.pass = options;
    const CalibrationSums sums = accumulate_calibration(traces, calibration);
    const ReusePredictor predictor(sums, ReuseGranularity::head);
    for (const std::int64_t tau : calibration.taus) {
      results.curves.push_back(predictor.curve(tau, kPointsPerCurve));
    }
    results.finding = finding_text(sums, predictor);
  } catch (const TraceError& error) {
    results.missing = error.what();
  }
  return results;
}

}  // namespace blockscope
