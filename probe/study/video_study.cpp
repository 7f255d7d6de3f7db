// FlashBlock (arXiv 2602.05305), Fig. 5 and the attention of Table 5, for a recording of a video
// model's own loop: similarity of A_out and A_in by layer and head, the masks of the released
// calibration, and what is left of attention's work. The model itself does not run.
#include <fmt/format.h>

#include <cmath>

#include "analysis/calibration/calibration.h"
#include "analysis/figures/figures.h"
#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/base/error.h"
#include "decode_record/interchange/loop_comparison.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

/// A rule of tau must hold step 1: in a trace without tokens, every tau above 1 does.
constexpr int64_t kTau = 2;

struct VideoCalibration {
  CalibrationSums sums;
  Calibration chosen;
};

VideoCalibration calibrate(const TraceGroup& traces, const StudyOptions& options) {
  CalibrationOptions wanted;
  wanted.taus = {kTau};
  wanted.each_step = true;
  wanted.reference = ReuseReference::kept;
  wanted.provisional = ProvisionalMask{options.gamma, options.lse_bound};
  wanted.needs_drift = true;
  VideoCalibration result{accumulate_calibration(traces, wanted), {}};
  CalibrationRequest request;
  request.gamma = options.gamma;
  request.lse_bound = options.lse_bound;
  request.tau = kTau;
  result.chosen = choose(result.sums, request);
  return result;
}

/// "2-2" is step 2: step 1 never reuses.
std::string step_text(const StepRanges& ranges, size_t range) {
  const int64_t step = static_cast<int64_t>(range) + 2;
  return range + 1 == ranges.size() ? fmt::format("{} and later", step) : fmt::format("{}", step);
}

/// Mean over the heads with a value.
double mean_of(const HeadMatrix<double>& matrix) {
  double sum = 0.0;
  int64_t count = 0;
  for (const auto& layer : matrix) {
    for (const double value : layer) {
      if (std::isnan(value)) continue;
      sum += value;
      ++count;
    }
  }
  return count == 0 ? kNotMeasured : sum / static_cast<double>(count);
}

ReportTable mask_table(const VideoCalibration& calibration, const StudyOptions& options) {
  ReportTable table{
      .name = "masks",
      .title = "Heads that may reuse, by step",
      .caption = fmt::format("similarity to the kept A_out > {:g}, and mean change "
                             "of L_out <= {:g}",
                             options.gamma, options.lse_bound),
      .table = {{"step", "heads that reuse", "of", "similarity", "change of L_out"}, {}}};
  const CalibrationSums& sums = calibration.sums;
  for (size_t range = 0; range < calibration.chosen.reuse.heads.size(); ++range) {
    int64_t reusing = 0;
    int64_t heads = 0;
    for (const auto& layer : calibration.chosen.reuse.heads[range]) {
      for (const bool reuses : layer) {
        reusing += reuses ? 1 : 0;
        ++heads;
      }
    }
    table.table.rows.push_back({step_text(sums.ranges, range), fmt::format("{}", reusing),
                                fmt::format("{}", heads),
                                report_number(mean_of(sums.similarity[range])),
                                report_number(mean_of(sums.lse_drift[range]))});
  }
  return table;
}

/// Products of a query and a key, over all steps and clean passes, relative to dense attention.
struct Products {
  double external = 0.0;  ///< keys before the block
  double internal = 0.0;  ///< keys of the block
};

Products products_of(const TraceGroup& traces) {
  Products products;
  for (size_t i = 0; i < traces.size(); ++i) {
    const TraceReader& trace = traces.trace(i);
    const TraceInfo& info = trace.info();
    const StepColumns steps = trace.steps(0, info.num_rows);
    const auto rows = static_cast<double>(info.meta.block_tokens);
    for (int64_t row = 0; row < steps.count; ++row) {
      const auto at = static_cast<size_t>(row);
      if (!is_step(static_cast<PassKind>(steps.kind[at]), true)) continue;
      products.external += rows * steps.context_length[at];
      products.internal += rows * rows;
    }
  }
  return products;
}

ReportTable work_table(const TraceGroup& traces, const VideoCalibration& calibration) {
  const Products dense = products_of(traces);
  const ReusePoint& point = calibration.chosen.predicted.point;
  ReportTable table{
      .name = "work",
      .title = "Attention's work",
      .caption =
          "products of a query and a key over all steps and clean passes, relative to exact "
          "attention; keys that all heads of a KV head skip",
      .table = {{"method", "products", "times fewer", "keys not read", "error where reused"}, {}}};
  const double all = dense.external + dense.internal;
  const double left = dense.internal + dense.external * (1.0 - point.flop_saving);
  table.table.rows.push_back({"exact", "100.0 %", "1.00", "0.0 %", "0"});
  table.table.rows.push_back(
      {"flashblock", percent_number(left / all) + " %", fmt::format("{:.2f}", all / left),
       percent_number(point.byte_saving) + " %", report_number(point.relative_l2_reused)});
  return table;
}

/// A row for each layer and head: Fig. 5, then each step's statistics and mask.
NumberTable csv_of(const TraceGroup& traces, const MetricResult& similarity,
                   const VideoCalibration& calibration) {
  const ResultArray external =
      mean_over_others(similarity.array("similarity_external"), {"layer", "head"});
  const ResultArray internal =
      mean_over_others(similarity.array("similarity_internal"), {"layer", "head"});
  NumberTable csv{{"layer", "head", "A_out", "A_in"}, {}};
  const size_t ranges = calibration.chosen.reuse.heads.size();
  for (size_t range = 0; range < ranges; ++range) {
    for (const char* column : {"similarity", "lse_change", "reuse"}) {
      csv.header.push_back(fmt::format("{}_step{}", column, range + 2));
    }
  }
  const auto number = [](double value) {
    return std::isnan(value) ? std::string() : fmt::format("{:.9g}", value);
  };
  const TraceShape& shape = traces.shape();
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    for (size_t h = 0; h < shape.heads.size(); ++h) {
      const auto layer = static_cast<size_t>(shape.layers[l]);
      const auto head = static_cast<size_t>(shape.heads[h]);
      std::vector<std::string> row{fmt::format("{}", layer), fmt::format("{}", head),
                                   number(external.at({l, h})), number(internal.at({l, h}))};
      for (size_t range = 0; range < ranges; ++range) {
        row.push_back(number(calibration.sums.similarity[range][layer][head]));
        row.push_back(number(calibration.sums.lse_drift[range][layer][head]));
        row.emplace_back(calibration.chosen.reuse.heads[range][layer][head] ? "1" : "0");
      }
      csv.rows.push_back(std::move(row));
    }
  }
  return csv;
}

}  // namespace

StudyReport video_report(const StudyOptions& options) {
  const TraceGroup traces({options.trace});
  if (!traces.trace(0).info().meta.continuous()) {
    throw UsageError(fmt::format(
        "study video: {}: expected a trace of a continuous model, got one of a model with tokens. "
        "HINT: blockscope.record(model with a timestep, ...), docs/python.md; for tokens: "
        "blockscope report, or analyze --metric similarity",
        options.trace));
  }
  std::optional<LoopComparison> compared;
  if (!options.compare.empty()) compared = read_loop_comparison(options.compare);
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(metric_by_name("similarity").make({}));
  const MetricResult similarity = run_pass(traces, metrics).front();
  const VideoCalibration calibration = calibrate(traces, options);
  StudyReport report;
  report.tables = {mask_table(calibration, options), work_table(traces, calibration)};
  if (compared) report.tables.push_back(loop_comparison_table(*compared));
  report.notes = warnings_of(calibration.chosen);
  report.csv = csv_of(traces, similarity, calibration);
  for (ReportFigure& figure : head_similarity(similarity)) {
    report.figures.push_back(std::move(figure.figure));
  }
  if (auto figure = similarity_over_steps(similarity)) {
    report.figures.push_back(std::move(figure->figure));
  }
  return report;
}

}  // namespace blockscope
