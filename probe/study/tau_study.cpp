// FlashBlock (seed 000), Table 4 and Fig. 3: accuracy, reads and time of a step by tau and context
// length, if every head reuses.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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

  /// The methods take turns, so that a drift of the machine's speed affects all of them.
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
  using ContextTotals = std::map<int64_t, MethodTotals>;
  // By method.
  NumberTable times(const std::vector<ContextTotals>& totals) const;
  NumberTable csv(const std::vector<TaskTotals>& by_task,
                  const std::vector<ContextTotals>& by_context) const;
  Figure figure(const std::vector<ContextTotals>& totals) const;

  std::vector<StudyMethod> methods_;
};

/// Milliseconds of a denoising step.
double step_ms(const MethodTotals& total, double MethodRun::*time) {
  return total.sum.*time / static_cast<double>(std::max<int64_t>(total.sum.denoising_steps, 1));
}

NumberTable TauStudy::times(const std::vector<ContextTotals>& totals) const {
  NumberTable table{{"policy"}, {}};
  for (const auto& [context, total] : totals.front()) {
    table.header.push_back(context == 0 ? "prompts" : std::to_string(context));
  }
  for (size_t m = 0; m < methods_.size(); ++m) {
    std::vector<std::string>& row = table.rows.emplace_back(1, methods_[m].name);
    for (const auto& [context, total] : totals[m]) {
      row.push_back(fmt::format("{:.2f} ({:.2f})", step_ms(total, &MethodRun::step_ms),
                                step_ms(total, &MethodRun::attention_ms)));
    }
  }
  return table;
}

NumberTable TauStudy::csv(const std::vector<TaskTotals>& by_task,
                          const std::vector<ContextTotals>& by_context) const {
  NumberTable table{{"policy", "tau", "task", "context", "prompts", "accuracy", "equal_to_exact",
                     "keys_not_read", "step_ms", "attention_ms"},
                    {}};
  for (size_t m = 0; m < methods_.size(); ++m) {
    const std::string tau = methods_[m].k == 0 ? "" : std::to_string(methods_[m].k);
    for (const std::string& task : tasks_of(prompts_)) {
      const MethodTotals& total = by_task[m].at(task);
      table.rows.push_back({methods_[m].name, tau, task, "", std::to_string(total.prompts),
                            six_digits(total.accuracy()), six_digits(total.share_equal()),
                            six_digits(total.saving()), "", ""});
    }
    for (const auto& [context, total] : by_context[m]) {
      table.rows.push_back({methods_[m].name, tau, "", std::to_string(context),
                            std::to_string(total.prompts), "", "", six_digits(total.saving()),
                            six_digits(step_ms(total, &MethodRun::step_ms)),
                            six_digits(step_ms(total, &MethodRun::attention_ms))});
    }
  }
  return table;
}

Figure TauStudy::figure(const std::vector<ContextTotals>& totals) const {
  LineChart chart{.x_label = "context (tokens)", .y_label = "denoising step (ms)"};
  double slowest = 0.0;
  for (size_t m = 0; m < methods_.size(); ++m) {
    Curve curve{.title = m == 0 ? "exact" : fmt::format("τ = {}", methods_[m].k), .x = {}, .y = {}};
    for (const auto& [context, total] : totals[m]) {
      curve.x.push_back(static_cast<double>(context));
      curve.y.push_back(step_ms(total, &MethodRun::step_ms));
      slowest = std::max(slowest, curve.y.back());
    }
    chart.curves.push_back(std::move(curve));
  }
  chart.y_upper = round_up_to(slowest);
  Figure figure;
  figure.name = "tau-times";
  figure.title = "A denoising step against context length, by τ";
  figure.caption = fmt::format("{} prompts, {} turns each; as FlashBlock, Fig. 3.", prompts_.size(),
                               input_.options.repeats);
  draw_chart(chart, figure);
  return figure;
}

StudyReport TauStudy::report(const std::vector<nlohmann::json>& values) const {
  std::vector<std::string> names;
  for (const StudyMethod& method : methods_) names.push_back(method.name);
  std::vector<ContextTotals> by_context(methods_.size());
  std::vector<TaskTotals> by_task(methods_.size());
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t m = 0; m < methods_.size(); ++m) {
      by_task[m][prompts_[p].task].add(method_run_from_json(values[p].at(0).at(m)));
      for (const nlohmann::json& turn : values[p]) {
        by_context[m][prompts_[p].context].add(method_run_from_json(turn.at(m)));
      }
    }
  }
  StudyReport report;
  report.tables = {
      {"tau", "Accuracy and reads by tau, in percent",
       fmt::format("n = {} prompts a task. Every head reuses an earlier step's external pair "
                   "where fewer than tau tokens changed. As FlashBlock, Table 4.",
                   by_task.front().begin()->second.prompts),
       accuracy_by_task("policy", names, tasks_of(prompts_), by_task)},
      {"tau-times", "Milliseconds of a denoising step by context length: whole step (attention)",
       fmt::format("Means over steps, prompts and {} turns, policies taking turns. As FlashBlock, "
                   "Fig. 3.",
                   input_.options.repeats),
       times(by_context)}};
  report.csv = csv(by_task, by_context);
  if (by_context.front().size() > 1) report.figures = {figure(by_context)};
  return report;
}

}  // namespace

std::unique_ptr<Study> make_tau_study(const StudyInput& input) {
  return std::make_unique<TauStudy>(input);
}

}  // namespace blockscope
