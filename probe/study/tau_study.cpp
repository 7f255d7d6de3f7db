// FlashBlock (seed 000), Table 4 and Fig. 3: accuracy, reads and time of a step by tau and context
// length, every head reusing.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/figures/line_chart.h"
#include "decode_record/base/error.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

class TauStudy : public PromptStudy {
 public:
  explicit TauStudy(const StudyInput& input) : PromptStudy(input) {
    if (input.decode.fuses_commits()) {
      throw UsageError(
          "study tau: --cache blockd: steps are timed apart from commits, and a fused pass is "
          "both. HINT: leave the option out");
    }
    methods_.push_back({"exact", {}, 0});
    for (const int64_t tau : input.options.taus) {
      PolicyOptions policy;
      policy.policy = "flashblock";
      policy.tau = tau;
      methods_.push_back({fmt::format("tau={}", tau), policy, tau});
    }
  }

  /// The methods take turns as many times as asked, so that a drift of the machine meets all.
  nlohmann::json measure(size_t cell) override {
    nlohmann::json runs = nlohmann::json::array();
    for (int64_t r = 0; r < input_.options.repeats; ++r) {
      nlohmann::json turn = nlohmann::json::array();
      for (const MethodRun& run :
           run_methods(input_.model, input_.tokenizer, input_.decode, prompts_[cell], methods_)) {
        turn.push_back(to_json(run));
      }
      runs.push_back(std::move(turn));
    }
    return runs;
  }

  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  std::vector<StudyMethod> methods_;
};

StudyReport TauStudy::report(const std::vector<nlohmann::json>& values) const {
  std::set<int64_t> contexts;
  std::vector<std::string> tasks;
  std::vector<std::map<int64_t, MethodTotals>> by_context(methods_.size());
  std::vector<std::map<std::string, MethodTotals>> by_task(methods_.size());
  for (size_t p = 0; p < prompts_.size(); ++p) {
    const StudyPrompt& prompt = prompts_[p];
    contexts.insert(prompt.context);
    if (std::ranges::find(tasks, prompt.task) == tasks.end()) tasks.push_back(prompt.task);
    for (size_t m = 0; m < methods_.size(); ++m) {
      by_task[m][prompt.task].add(method_run_from_json(values[p].at(0).at(m)));
      for (const nlohmann::json& turn : values[p]) {
        by_context[m][prompt.context].add(method_run_from_json(turn.at(m)));
      }
    }
  }
  const auto step_ms = [](const MethodTotals& total, double MethodRun::*time) {
    return total.sum.*time / static_cast<double>(std::max<int64_t>(total.sum.denoising_steps, 1));
  };
  StudyReport report;
  ReportTable accuracy{"tau",
                       "Accuracy and reads by tau, in percent",
                       fmt::format("n = {} prompts a task. Every head reuses an earlier step's "
                                   "external pair where fewer than tau tokens changed. As "
                                   "FlashBlock, Table 4.",
                                   by_task.front().begin()->second.prompts),
                       {{"policy"}, {}}};
  for (const std::string& task : tasks)
    accuracy.table.header.push_back(task.empty() ? "prompts" : task);
  accuracy.table.header.insert(accuracy.table.header.end(), {"equal to exact", "keys not read"});
  ReportTable times{"tau-times",
                    "Milliseconds of a denoising step by context length: whole step (attention)",
                    fmt::format("Means over steps, prompts and {} turns, policies taking turns. As "
                                "FlashBlock, Fig. 3.",
                                input_.options.repeats),
                    {{"policy"}, {}}};
  for (const int64_t context : contexts) {
    times.table.header.push_back(context == 0 ? "prompts" : std::to_string(context));
  }
  report.csv_header = {"policy",  "tau",         "task",           "context",
                       "prompts", "accuracy",    "equal_to_exact", "keys_not_read",
                       "step_ms", "attention_ms"};
  LineChart chart{.x_label = "context (tokens)", .y_label = "denoising step (ms)"};
  double slowest = 0.0;
  for (size_t m = 0; m < methods_.size(); ++m) {
    const std::string tau = methods_[m].k == 0 ? "" : std::to_string(methods_[m].k);
    std::vector<std::string> row{methods_[m].name};
    MethodTotals all;
    for (const std::string& task : tasks) {
      const MethodTotals& total = by_task[m].at(task);
      row.push_back(percent_number(total.accuracy()));
      all.sum.tokens += total.sum.tokens;
      all.sum.equal += total.sum.equal;
      all.sum.rows += total.sum.rows;
      all.sum.rows_read += total.sum.rows_read;
      report.csv.push_back({methods_[m].name, tau, task, "", std::to_string(total.prompts),
                            fmt::format("{:.6g}", total.accuracy()),
                            fmt::format("{:.6g}", total.share_equal()),
                            fmt::format("{:.6g}", total.saving()), "", ""});
    }
    row.push_back(percent_number(all.share_equal()));
    row.push_back(percent_number(all.saving()));
    accuracy.table.rows.push_back(std::move(row));
    std::vector<std::string> line{methods_[m].name};
    Curve curve{.title = m == 0 ? "exact" : fmt::format("τ = {}", methods_[m].k), .x = {}, .y = {}};
    for (const int64_t context : contexts) {
      const MethodTotals& total = by_context[m].at(context);
      const double whole = step_ms(total, &MethodRun::step_ms);
      const double attention = step_ms(total, &MethodRun::attention_ms);
      line.push_back(fmt::format("{:.2f} ({:.2f})", whole, attention));
      report.csv.push_back({methods_[m].name, tau, "", std::to_string(context),
                            std::to_string(total.prompts), "", "",
                            fmt::format("{:.6g}", total.saving()), fmt::format("{:.6g}", whole),
                            fmt::format("{:.6g}", attention)});
      curve.x.push_back(static_cast<double>(context));
      curve.y.push_back(whole);
      slowest = std::max(slowest, whole);
    }
    times.table.rows.push_back(std::move(line));
    chart.curves.push_back(std::move(curve));
  }
  report.tables = {std::move(accuracy), std::move(times)};
  if (contexts.size() > 1) {
    chart.y_upper = round_up_to(slowest);
    Figure& figure = report.figures.emplace_back();
    figure.name = "tau-times";
    figure.title = "A denoising step against context length, by τ";
    figure.caption = fmt::format("{} prompts, {} turns each; as FlashBlock, Fig. 3.",
                                 prompts_.size(), input_.options.repeats);
    draw_chart(chart, figure);
  }
  return report;
}

}  // namespace

std::unique_ptr<Study> make_tau_study(const StudyInput& input) {
  return std::make_unique<TauStudy>(input);
}

}  // namespace blockscope
