// FlashBlock (seed 000), Table 4 and Fig. 3: accuracy, KL, reads and time of a step by rule of
// reuse, tau and context length, if every head may reuse.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "analysis/figures/line_chart.h"
#include "decode_record/base/error.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

/// A method of the study: a policy of --policies with a tau of --taus or with its own bound, or
/// exact.
struct TauMethod {
  StudyMethod method;
  std::string variant;   // the policy without tau or bound: its curve; empty: exact
  bool adapted = false;  // with the adapter of --adapter
};

constexpr const char* kWithAdapter = " + adapter";

std::vector<TauMethod> methods_of(const StudyOptions& options, bool adapted) {
  std::vector<TauMethod> methods{{{"exact", {}, 0}, "", adapted}};
  for (const std::string& text : options.policies) {
    PolicyOptions policy = read_policy(text);
    if (policy.bound.has_value()) {
      PolicyOptions without_bound = policy;
      without_bound.bound.reset();
      const std::string variant = fmt::format("{}, by bound", policy_text(without_bound));
      methods.push_back({{policy_text(policy), policy, 0}, variant, adapted});
      continue;
    }
    for (const int64_t tau : options.taus) {
      if (!policy_entry(policy).heeds("tau") || policy.tau.has_value()) {
        throw UsageError(fmt::format(
            "--policies: {}: expected a policy with the option tau, which --taus sets, or with "
            "bound. HINT: flashblock,refresh=near",
            text));
      }
      PolicyOptions with_tau = policy;
      with_tau.tau = tau;
      methods.push_back({{policy_text(with_tau), with_tau, tau}, text, adapted});
    }
  }
  if (!adapted) return methods;
  for (TauMethod& method : methods) method.method.name += kWithAdapter;
  return methods;
}

class TauStudy : public PromptStudy {
 public:
  explicit TauStudy(const StudyInput& input)
      : PromptStudy(input), methods_(methods_of(input.options, false)) {
    if (input.decode.fuses_commits()) {
      throw UsageError(
          "study tau: --cache blockd: steps are timed apart from commits, and a fused pass is "
          "both. HINT: leave the option out");
    }
    if (input.model.adapter.empty()) return;
    ModelFlags without_adapter = input.model_flags;
    without_adapter.adapter.clear();
    base_ = load_model(without_adapter, input.environment);
    for (TauMethod& method : methods_of(input.options, true)) methods_.push_back(std::move(method));
  }

  /// The methods take turns, so that a drift of the machine's speed affects all of them.
  nlohmann::json measure(size_t cell) override {
    nlohmann::json runs = nlohmann::json::array();
    for (int64_t r = 0; r < input_.options.repeats; ++r) {
      std::vector<MethodRun> turn = runs_of(cell, false);
      if (base_.has_value()) {
        for (MethodRun& run : runs_of(cell, true)) turn.push_back(run);
      }
      if (r == 0) add_kl(cell, turn);
      runs.push_back(nlohmann::json::array());
      for (const MethodRun& run : turn) runs.back().push_back(to_json(run));
    }
    return runs;
  }

  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  using ContextTotals = std::map<int64_t, MethodTotals>;
  const LoadedModel& model_of(bool adapted) const {
    return base_.has_value() && !adapted ? *base_ : input_.model;
  }
  /// Each once, in the order of the methods.
  std::vector<std::string> variants() const {
    std::vector<std::string> found;
    for (const TauMethod& method : methods_) {
      const bool is_new = std::ranges::find(found, method.variant) == found.end();
      if (is_new && !method.variant.empty()) found.push_back(method.variant);
    }
    return found;
  }
  std::vector<MethodRun> runs_of(size_t cell, bool adapted) const;
  void add_kl(size_t cell, std::vector<MethodRun>& runs) const;
  // By method.
  NumberTable times(const std::vector<ContextTotals>& totals) const;
  NumberTable csv(const std::vector<TaskTotals>& by_task,
                  const std::vector<ContextTotals>& by_context) const;
  Figure times_figure(const std::vector<ContextTotals>& totals) const;
  Figure trade_off(const std::vector<MethodTotals>& totals, const char* name, const char* saved,
                   double (MethodTotals::*share)() const) const;

  std::optional<LoadedModel> base_;  // with --adapter: the model without it
  std::vector<TauMethod> methods_;   // exact comes first
};

std::vector<MethodRun> TauStudy::runs_of(size_t cell, bool adapted) const {
  std::vector<StudyMethod> methods;
  for (const TauMethod& method : methods_) {
    if (method.adapted == adapted) methods.push_back(method.method);
  }
  return run_methods(model_of(adapted), input_.tokenizer, input_.decode, prompts_[cell], methods);
}

/// Milliseconds of a denoising step.
double step_ms(const MethodTotals& total, double MethodRun::*time) {
  return total.sum.*time / static_cast<double>(std::max<int64_t>(total.sum.denoising_steps, 1));
}

/// Under replay of the prompt's exact run, without adapter.
void TauStudy::add_kl(size_t cell, std::vector<MethodRun>& runs) const {
  const ExactReplay replay(model_of(false), input_.decode, prompts_[cell]);
  for (size_t m = 1; m < methods_.size(); ++m) {
    const TauMethod& method = methods_[m];
    const KlSummary kl = replay.compare(model_of(method.adapted), method.method.policy).kl;
    runs[m].kl = kl.mean * static_cast<double>(kl.count);
    runs[m].kl_positions = kl.count;
  }
}

NumberTable TauStudy::times(const std::vector<ContextTotals>& totals) const {
  NumberTable table{{"policy"}, {}};
  for (const auto& [context, total] : totals.front()) {
    table.header.push_back(context == 0 ? "prompts" : std::to_string(context));
  }
  for (size_t m = 0; m < methods_.size(); ++m) {
    std::vector<std::string>& row = table.rows.emplace_back(1, methods_[m].method.name);
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
                     "kl", "keys_not_read", "products_not_computed", "step_ms", "attention_ms"},
                    {}};
  for (size_t m = 0; m < methods_.size(); ++m) {
    const StudyMethod& method = methods_[m].method;
    const std::string tau = method.k == 0 ? "" : std::to_string(method.k);
    for (const std::string& task : tasks_of(prompts_)) {
      const MethodTotals& total = by_task[m].at(task);
      table.rows.push_back({method.name, tau, task, "", std::to_string(total.prompts),
                            six_digits(total.accuracy()), six_digits(total.share_equal()),
                            six_digits(total.mean_kl()), six_digits(total.saving()),
                            six_digits(total.products_saving()), "", ""});
    }
    for (const auto& [context, total] : by_context[m]) {
      table.rows.push_back({method.name, tau, "", std::to_string(context),
                            std::to_string(total.prompts), "", "", "", six_digits(total.saving()),
                            six_digits(total.products_saving()),
                            six_digits(step_ms(total, &MethodRun::step_ms)),
                            six_digits(step_ms(total, &MethodRun::attention_ms))});
    }
  }
  return table;
}

Figure TauStudy::times_figure(const std::vector<ContextTotals>& totals) const {
  LineChart chart{.x_label = "context (tokens)", .y_label = "denoising step (ms)"};
  double slowest = 0.0;
  for (size_t m = 0; m < methods_.size(); ++m) {
    // A key of more curves would not fit. The table has them all.
    const std::string& variant = methods_[m].variant;
    if (methods_[m].adapted || (!variant.empty() && variant != variants().front())) continue;
    Curve curve{.title = methods_[m].method.name, .x = {}, .y = {}};
    for (const auto& [context, total] : totals[m]) {
      curve.x.push_back(static_cast<double>(context));
      curve.y.push_back(step_ms(total, &MethodRun::step_ms));
      slowest = std::max(slowest, curve.y.back());
    }
    chart.curves.push_back(std::move(curve));
  }
  chart.y_upper = round_up_to(slowest);
  look_like_methods(chart.curves);
  Figure figure;
  figure.name = "tau-times";
  figure.title = "A denoising step against context length, by τ";
  figure.caption =
      fmt::format("{} prompts, {} turns each, the first of --policies; as FlashBlock, Fig. 3.",
                  prompts_.size(), input_.options.repeats);
  draw_chart(chart, figure);
  return figure;
}

/// Accuracy against a share of what was saved, a curve for each variant. `totals`: by method, all
/// tasks.
Figure TauStudy::trade_off(const std::vector<MethodTotals>& totals, const char* name,
                           const char* saved, double (MethodTotals::*share)() const) const {
  LineChart chart{.x_label = fmt::format("{} (%)", saved), .y_label = "accuracy (%)"};
  chart.y_upper = 100.0;
  chart.x_from = 0.0;
  for (const bool adapted : {false, true}) {
    if (adapted && !base_.has_value()) break;
    for (const std::string& variant : variants()) {
      std::vector<std::pair<double, double>> points;
      for (size_t m = 0; m < methods_.size(); ++m) {
        const bool of_curve = methods_[m].variant == variant || methods_[m].variant.empty();
        if (methods_[m].adapted != adapted || !of_curve) continue;
        points.emplace_back(100.0 * (totals[m].*share)(), 100.0 * totals[m].accuracy());
      }
      std::ranges::sort(points);
      Curve curve{.title = variant + (adapted ? kWithAdapter : ""), .x = {}, .y = {}};
      for (const auto& [x, accuracy] : points) {
        curve.x.push_back(x);
        curve.y.push_back(accuracy);
      }
      chart.curves.push_back(std::move(curve));
    }
  }
  look_like_methods(chart.curves);
  Figure figure;
  figure.name = name;
  figure.title = fmt::format("Accuracy against {}, by τ", saved);
  figure.caption = fmt::format(
      "{} prompts of all tasks. A point for exact, for each bound, and for each τ of {}; as "
      "FlashBlock, Table 4.",
      prompts_.size(), fmt::join(input_.options.taus, ", "));
  draw_chart(chart, figure);
  return figure;
}

StudyReport TauStudy::report(const std::vector<nlohmann::json>& values) const {
  std::vector<std::string> names;
  for (const TauMethod& method : methods_) names.push_back(method.method.name);
  std::vector<ContextTotals> by_context(methods_.size());
  std::vector<TaskTotals> by_task(methods_.size());
  std::vector<MethodTotals> all(methods_.size());
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t m = 0; m < methods_.size(); ++m) {
      const MethodRun first = method_run_from_json(values[p].at(0).at(m));
      by_task[m][prompts_[p].task].add(first);
      all[m].add(first);
      for (const nlohmann::json& turn : values[p]) {
        by_context[m][prompts_[p].context].add(method_run_from_json(turn.at(m)));
      }
    }
  }
  StudyReport report;
  NumberTable accuracy = accuracy_by_task("policy", names, tasks_of(prompts_), by_task);
  accuracy.header.insert(accuracy.header.end(), {"products not computed", "KL"});
  for (size_t m = 0; m < methods_.size(); ++m) {
    accuracy.rows[m].push_back(percent_number(all[m].products_saving()));
    accuracy.rows[m].push_back(report_number(all[m].mean_kl()));
  }
  report.tables = {
      {"tau", "Accuracy, reads and KL by tau",
       fmt::format("n = {} prompts a task. Every head may reuse. Accuracy and reads in percent; KL "
                   "in nats a masked position, under replay of the exact run. As FlashBlock, Table "
                   "4.",
                   by_task.front().begin()->second.prompts),
       std::move(accuracy)},
      {"tau-times", "Milliseconds of a denoising step by context length: whole step (attention)",
       fmt::format("Means over steps, prompts and {} turns, policies taking turns. As FlashBlock, "
                   "Fig. 3.",
                   input_.options.repeats),
       times(by_context)}};
  report.csv = csv(by_task, by_context);
  if (by_context.front().size() > 1) report.figures.push_back(times_figure(by_context));
  if (all.front().scored > 0) {
    report.figures.push_back(trade_off(all, "tau-keys", "keys not read", &MethodTotals::saving));
    report.figures.push_back(trade_off(all, "tau-products", "query-key products not computed",
                                       &MethodTotals::products_saving));
  }
  return report;
}

}  // namespace

std::unique_ptr<Study> make_tau_study(const StudyInput& input) {
  return std::make_unique<TauStudy>(input);
}

}  // namespace blockscope
