// MAGE (seed 001), Fig. 2 and Table 2: the five stages from predictions to key sets, and the recall
// of step 1's set over the steps, for the trained model and its autoregressive backbone. Both are
// captured; the backbone replays the trained model's run. The traces stay for other commands.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/metrics/metrics.h"
#include "analysis/metrics/query_comparison.h"
#include "analysis/pass/step_pass.h"
#include "command_line/interrupt.h"
#include "decode_record/base/error.h"
#include "probe/policies/exact_policy.h"
#include "probe/run/capture_cost.h"
#include "probe/run/capture_plan.h"
#include "probe/run/capture_run.h"
#include "probe/run/replay_source.h"
#include "probe/run/run_description.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

class StagesStudy : public Study {
 public:
  explicit StagesStudy(const StudyInput& input)
      : input_(input),
        prompts_(study_prompts(input.options.prompts, input.model, input.tokenizer,
                               input.gen_length, input.decode)) {
    if (input.options.backbone.empty()) {
      throw UsageError(
          "study stages: expected --backbone, got none. HINT: the autoregressive checkpoint that "
          "the model was made from, such as models/needle/backbone");
    }
  }

  std::vector<std::string> cells() const override { return {"trained", "backbone"}; }

  std::vector<std::string> outputs() const override { return {trace_name(0), trace_name(1)}; }

  nlohmann::json measure(size_t cell) override {
    if (cell == 0) {
      std::vector<RunPrompt> prompts;
      for (const StudyPrompt& prompt : prompts_) prompts.push_back(prompt.prompt);
      return capture(cell, input_.model, input_.decode, prompts, "");
    }
    ReplaySource replay = read_replay(trace(0));
    ModelFlags flags = flags_of_backbone(input_.model_flags, input_.options.backbone);
    flags.overrides.mask_token_id = replay.mask_token_id;
    flags.overrides.mask_source = "replayed trace";
    flags.overrides.block_length = replay.block_length;
    flags.overrides.block_source = "replayed trace";
    const LoadedModel backbone = load_model(flags, input_.environment);
    return capture(cell, backbone, input_.decode, replay.prompts, trace(0));
  }

  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  std::string trace_name(size_t cell) const { return "stages-" + cells()[cell] + ".h5"; }
  std::string trace(size_t cell) const {
    return (std::filesystem::path(input_.options.folder) / trace_name(cell)).string();
  }
  nlohmann::json capture(size_t cell, const LoadedModel& model, const DecodeOptions& decode,
                         const std::vector<RunPrompt>& prompts, const std::string& replay);
  void add_stages(const TraceGroup& trained, const TraceGroup& backbone, StudyReport& report) const;
  void add_recall(const TraceGroup& trained, const TraceGroup& backbone, StudyReport& report) const;

  StudyInput input_;
  std::vector<StudyPrompt> prompts_;
};

nlohmann::json StagesStudy::capture(size_t cell, const LoadedModel& model,
                                    const DecodeOptions& decode,
                                    const std::vector<RunPrompt>& prompts,
                                    const std::string& replay) {
  RecordFlags record;
  record.level = "sets";
  record.set_size = input_.options.set_sizes.back();
  ChosenPolicy policy{make_exact_policy(), R"({"policy":"exact"})"};
  RecorderOptions recorder =
      recorder_options(record, *policy.policy, longest_prefix(prompts, decode), model, decode);
  DecodingFlags decoding;
  recorder.meta.run_json = run_json(
      {decode, decoding, policy, recorder, prompts, Ranks{}, replay, "blockscope study stages"});
  recorder.meta.pieces = vocabulary_pieces(input_.tokenizer, model.config.vocab_size);
  const CaptureCost cost = capture_cost(recorder, decode, prompts, 1, model);
  check_free_space(trace(cell), cost.file_bytes);
  TraceWriterOptions options;
  options.force = true;  // replaces what a cut run left: its cell was not finished
  TraceWriter writer(trace(cell), recorder.meta, options);
  const CaptureRun run{model, decode, input_.tokenizer, *policy.policy, 1, /*quiet=*/true};
  const CaptureTotals totals =
      run_capture(run, recorder, prompts, ResumeState{}, writer, [](const CaptureOutcome&) {});
  InterruptGuard::check();
  writer.finish();
  return {{"steps", totals.denoising_rows},
          {"accuracy", totals.scored == 0 ? nlohmann::json()
                                          : nlohmann::json(totals.score_sum /
                                                           static_cast<double>(totals.scored))}};
}

/// Table 2.
void StagesStudy::add_stages(const TraceGroup& trained, const TraceGroup& backbone,
                             StudyReport& report) const {
  const MetricResult stages = compare_query_statistics(trained, backbone);
  if (std::optional<ReportTable> table = query_stages(stages)) {
    table->caption +=
        fmt::format(" n = {} prompts, k = {}.", prompts_.size(), input_.options.set_sizes.back());
    report.tables.push_back(std::move(*table));
  }
  const ResultArray& means = stages.array("stages");
  for (size_t s = 0; s < means.axes[0].size(); ++s) {
    for (size_t m = 0; m < means.axes[1].size(); ++m) {
      report.csv.rows.push_back(
          {means.axes[0].label(s), means.axes[1].label(m), "", "", six_digits(means.at({s, m})),
           std::to_string(means.terms.empty() ? 0 : means.terms[s * means.axes[1].size() + m])});
    }
  }
}

/// Fig. 2.
void StagesStudy::add_recall(const TraceGroup& trained, const TraceGroup& backbone,
                             StudyReport& report) const {
  MetricOptions options;
  options.set_sizes = input_.options.set_sizes;
  LineChart chart{.x_label = "denoising step t", .y_label = "recall r(t)"};
  ReportTable recall{"stages-recall",
                     "Recall of step 1's set at later steps, mean over steps, layers and KV heads",
                     "As MAGE, Fig. 2.",
                     {{"model"}, {}}};
  for (const int64_t k : input_.options.set_sizes)
    recall.table.header.push_back(fmt::format("k={}", k));
  for (const auto& [name, group] :
       {std::pair{"trained", &trained}, std::pair{"backbone", &backbone}}) {
    std::vector<std::unique_ptr<StepMetric>> metrics;
    metrics.push_back(metric_by_name("recall").make(options));
    const MetricResult result = run_pass(*group, metrics, {}).front();
    const ResultArray by_step = mean_over_others(result.array("recall"), {"k", "step"});
    const ResultArray by_size = mean_over_others(result.array("recall"), {"k"});
    std::vector<std::string> row{name};
    for (const double value : by_size.values) row.push_back(report_number(value));
    recall.table.rows.push_back(std::move(row));
    for (Curve& curve : curves_of(by_step, "step", "k", fmt::format("{}, k = ", name))) {
      for (size_t i = 0; i < curve.x.size(); ++i) {
        if (!std::isfinite(curve.y[i])) continue;
        report.csv.rows.push_back({"recall", name, curve.title.substr(curve.title.rfind(' ') + 1),
                                   fmt::format("{:g}", curve.x[i]), six_digits(curve.y[i]), ""});
      }
      chart.curves.push_back(std::move(curve));
    }
  }
  report.tables.push_back(std::move(recall));
  Figure& figure = report.figures.emplace_back();
  figure.name = "stages";
  figure.title = "How much of step 1's key set later steps still need";
  figure.caption = fmt::format(
      "{} prompts, the backbone under the trained model's frames. As MAGE, "
      "Fig. 2.",
      prompts_.size());
  draw_chart(chart, figure);
  figure.width = 900;
}

StudyReport StagesStudy::report(const std::vector<nlohmann::json>& values) const {
  for (size_t cell = 0; cell < 2; ++cell) {
    if (std::filesystem::exists(trace(cell))) continue;
    throw Error(
        fmt::format("{}: expected the trace that was captured, found none. HINT: --force "
                    "captures again",
                    trace(cell)));
  }
  const TraceGroup trained({trace(0)});
  const TraceGroup backbone({trace(1)});
  StudyReport report;
  report.csv.header = {"quantity", "model", "k", "step", "value", "n"};
  add_stages(trained, backbone, report);
  add_recall(trained, backbone, report);
  if (!values.front().at("accuracy").is_null()) {
    report.notes.push_back(
        fmt::format("the trained model solved {} % of the prompts",
                    percent_number(values.front().at("accuracy").get<double>())));
  }
  return report;
}

}  // namespace

std::unique_ptr<Study> make_stages_study(const StudyInput& input) {
  return std::make_unique<StagesStudy>(input);
}

}  // namespace blockscope
