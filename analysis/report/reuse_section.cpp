#include "analysis/report/reuse_section.h"

#include <fmt/format.h>

#include "analysis/calibration/calibration.h"
#include "analysis/report/html.h"
#include "analysis/report/report_metrics.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::int64_t kDefaultTau = 2;  ///< of `blockscope calibrate`
constexpr double kSaving = 0.5;          ///< share of the prefix bytes that the finding asks for
constexpr std::size_t kPointsPerCurve = 60;  ///< finer than the picture

std::string percent(double share) { return fmt::format("{:.0f} %", 100.0 * share); }

std::string finding_text(const CalibrationSums& sums, const ReusePredictor& predictor) {
  const std::string steps = counted(sums.steps, "step", "steps");
  if (sums.at(kDefaultTau).reusing_steps == 0) {
    return fmt::format(
        "Nothing to reuse at \u03c4 = {}: every step changes at least {} tokens "
        "(n = {}).",
        kDefaultTau, kDefaultTau, steps);
  }
  const ReusePoint all = predictor.at(-1.0, kDefaultTau);
  const std::string whole =
      fmt::format("reusing it in every head would save {} at an error where reused of {}",
                  percent(all.byte_saving), report_number(all.relative_l2_reused, 3));
  const auto gamma = predictor.gamma_for_saving(kSaving, kDefaultTau);
  if (!gamma) {
    return fmt::format(
        "Predicted for reuse of A_out at \u03c4 = {}: {} (relative L2 of the "
        "attention output, one step; n = {}).",
        kDefaultTau, whole, steps);
  }
  const ReusePoint point = predictor.at(*gamma, kDefaultTau);
  return fmt::format(
      "Predicted: reusing A_out in the {} with a similarity above \u03b3 = {:g} at \u03c4 = {} "
      "leaves {} of the prefix\u2019s bytes unread and moves the attention output by {} where it "
      "is "
      "reused, by {} over all heads and steps (relative L2, one step); {} (n = {}).",
      counted(point.heads, "head", "heads"), *gamma, kDefaultTau, percent(point.byte_saving),
      report_number(point.relative_l2_reused, 3), report_number(point.relative_l2_all_steps, 3),
      whole, steps);
}

}  // namespace

ReuseResults predict_reuse(const TraceGroup& traces, const PassOptions& options) {
  ReuseResults results;
  if (lowest_level(traces) < RecordLevel::summary) {
    results.missing = fmt::format(
        "The \u03b3 curve is not here: this trace was recorded with "
        "--record {}; it needs --record summary.",
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
