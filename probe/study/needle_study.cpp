// MAGE (seed 001), Table 3 and Fig. 4: accuracy by method, k, context length and depth of the
// answer. Every method decodes each prompt from the same prefill.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/figures/heatmap.h"
#include "analysis/figures/palette.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

class NeedleStudy : public PromptStudy {
 public:
  explicit NeedleStudy(const StudyInput& input) : PromptStudy(input) {
    const StudyOptions& options = input.options;
    methods_.push_back({"exact", {}, 0});
    for (const int64_t k : options.set_sizes) {
      for (const char* name :
           {"mage", "mage+flashblock", "sparsed", "quest", "oracle", "recent", "random"}) {
        PolicyOptions policy;
        policy.policy = name;
        policy.k = k;
        policy.exact_layers = options.exact_layers;
        policy.seed = options.policy_seed;
        if (policy.policy == "quest") {
          for (const int64_t page : options.pages) {
            policy.page = page;
            methods_.push_back({fmt::format("quest p={}", page), policy, k});
          }
        } else {
          methods_.push_back({name, policy, k});
        }
      }
    }
    for (StudyMethod& named : named_methods(options, options.set_sizes, methods_)) {
      methods_.push_back(std::move(named));
    }
  }

  nlohmann::json measure(size_t cell) override {
    nlohmann::json runs = nlohmann::json::array();
    for (const MethodRun& run :
         run_methods(input_.model, input_.tokenizer, input_.decode, prompts_[cell], methods_)) {
      runs.push_back(to_json(run));
    }
    return runs;
  }

  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  struct Place {
    int64_t context, depth;
    auto operator<=>(const Place&) const = default;
  };
  using Totals = std::map<Place, MethodTotals>;  // depth -1: all

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const StudyMethod& method : methods_) {
      if (std::ranges::find(names, method.name) == names.end()) names.push_back(method.name);
    }
    return names;
  }
  std::string context_name(int64_t context) const {
    return context == 0 ? "prompts" : std::to_string(context);
  }
  /// Totals of a method at k. `exact` has no k; its totals are returned for every k.
  const Totals& of(const std::vector<Totals>& totals, const std::string& name, int64_t k) const {
    for (size_t m = 0; m < methods_.size(); ++m) {
      if (methods_[m].name == name && (methods_[m].k == k || methods_[m].k == 0)) return totals[m];
    }
    return totals.front();
  }
  ReportTable table(const std::vector<Totals>& totals, int64_t context) const;
  void separation(const std::vector<Totals>& totals, const std::set<int64_t>& contexts,
                  StudyReport& report) const;
  Figure heatmap(const std::vector<Totals>& totals, const std::set<int64_t>& contexts,
                 int64_t k) const;
  Figure curves(const std::vector<Totals>& totals, const std::set<int64_t>& contexts) const;

  std::vector<StudyMethod> methods_;
};

StudyReport NeedleStudy::report(const std::vector<nlohmann::json>& values) const {
  std::vector<Totals> totals(methods_.size());
  std::set<int64_t> contexts;
  for (size_t p = 0; p < prompts_.size(); ++p) {
    contexts.insert(prompts_[p].context);
    for (size_t m = 0; m < methods_.size(); ++m) {
      const MethodRun run = method_run_from_json(values[p].at(m));
      totals[m][{prompts_[p].context, -1}].add(run);
      if (prompts_[p].depth >= 0) totals[m][{prompts_[p].context, prompts_[p].depth}].add(run);
    }
  }
  StudyReport report;
  for (const int64_t context : contexts) report.tables.push_back(table(totals, context));
  separation(totals, contexts, report);
  report.csv.header = {"method",     "k",        "context",        "depth",
                       "prompts",    "accuracy", "equal_to_exact", "keys_not_read",
                       "rows_scored"};
  for (size_t m = 0; m < methods_.size(); ++m) {
    for (const auto& [place, total] : totals[m]) {
      const double last = static_cast<double>(input_.options.prompts.depths - 1);
      report.csv.rows.push_back(
          {methods_[m].name, methods_[m].k == 0 ? "" : std::to_string(methods_[m].k),
           context_name(place.context),
           place.depth < 0 ? "all" : fmt::format("{:.4g}", static_cast<double>(place.depth) / last),
           std::to_string(total.prompts), six_digits(total.accuracy()),
           six_digits(total.share_equal()), six_digits(total.saving()),
           std::to_string(total.sum.rows_scored)});
    }
  }
  if (input_.options.prompts.generated()) {
    if (contexts.size() > 1) report.figures.push_back(curves(totals, contexts));
    if (input_.options.prompts.depths > 1) {
      for (const int64_t k : input_.options.set_sizes) {
        report.figures.push_back(heatmap(totals, contexts, k));
      }
    }
  }
  return report;
}

ReportTable NeedleStudy::table(const std::vector<Totals>& totals, int64_t context) const {
  ReportTable part;
  part.name = "needle-" + context_name(context);
  part.title = context == 0
                   ? "Accuracy by method and k, in percent"
                   : fmt::format("Accuracy at {} tokens by method and k, in percent", context);
  part.table.header = {"method"};
  for (const int64_t k : input_.options.set_sizes) {
    part.table.header.push_back(fmt::format("k={}", k));
  }
  for (const std::string& name : names()) {
    std::vector<std::string> row{name};
    for (const int64_t k : input_.options.set_sizes) {
      row.push_back(percent_number(of(totals, name, k).at({context, -1}).accuracy()));
    }
    part.table.rows.push_back(std::move(row));
  }
  part.caption = fmt::format(
      "n = {} prompts a cell, the same for every method, each decoded from one prefill. As MAGE, "
      "Table 3.",
      totals.front().at({context, -1}).prompts);
  return part;
}

/// Compares the methods at the smallest k at which exact attention solves the task and random keys
/// do not.
void NeedleStudy::separation(const std::vector<Totals>& totals, const std::set<int64_t>& contexts,
                             StudyReport& report) const {
  constexpr double kSolved = 0.95;
  constexpr double kFails = 0.5;
  for (const int64_t context : contexts) {
    const double exact = totals.front().at({context, -1}).accuracy();
    if (!(exact >= kSolved)) {
      report.notes.push_back(
          fmt::format("{}: exact attention solves {} %, below {:.0f}: the methods are not compared",
                      context_name(context), percent_number(exact), 100.0 * kSolved));
      continue;
    }
    for (const int64_t k : input_.options.set_sizes) {
      if (!(of(totals, "random", k).at({context, -1}).accuracy() < kFails)) continue;
      std::vector<std::pair<double, std::string>> order;
      for (const std::string& name : names()) {
        if (name == "exact") continue;
        order.emplace_back(-of(totals, name, k).at({context, -1}).accuracy(), name);
      }
      std::stable_sort(order.begin(), order.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      std::string line = fmt::format("{}: exact {}; at k = {} random fails:", context_name(context),
                                     percent_number(exact), k);
      for (const auto& [value, name] : order) {
        line += fmt::format(" {} {},", name, percent_number(-value));
      }
      line.pop_back();
      report.notes.push_back(line);
      break;
    }
  }
}

Figure NeedleStudy::heatmap(const std::vector<Totals>& totals, const std::set<int64_t>& contexts,
                            int64_t k) const {
  const std::vector<std::string> shown = names();
  Panels panels{.count = shown.size(), .columns = std::min<size_t>(4, shown.size())};
  panels.plot_width = std::clamp(static_cast<int>(contexts.size()) * 44, 110, 400);
  panels.plot_height = std::clamp(static_cast<int>(input_.options.prompts.depths) * 12, 90, 260);
  panels.right = 96;
  panels.left = 64;
  panels.gap_x = 52;
  panels.gap_y = 70;
  std::vector<std::string> lengths, depths;
  for (const int64_t context : contexts) lengths.push_back(context_name(context));
  const int64_t last = input_.options.prompts.depths - 1;
  for (int64_t d = 0; d <= last; ++d) {
    depths.push_back(
        fmt::format("{:.0f}", 100.0 * static_cast<double>(d) / static_cast<double>(last)));
  }
  Figure figure;
  figure.name = fmt::format("needle-k{}", k);
  figure.title = fmt::format("Retrieval by context length and depth, k = {}", k);
  figure.width = panels.width();
  figure.height = panels.height();
  figure.script = cell_axes(lengths.size(), depths.size()) + slot_tics("x", lengths, 8) +
                  slot_tics("y", depths, 6) + color_bar(panels, 0.0, 100.0, "accuracy (%)") +
                  "set multiplot\n";
  int64_t per_cell = 0;
  for (size_t i = 0; i < shown.size(); ++i) {
    const std::string file = fmt::format("cells{}.tsv", i);
    std::string text;
    double x = 0.0;
    for (const int64_t context : contexts) {
      for (int64_t d = 0; d <= last; ++d) {
        const MethodTotals& total = of(totals, shown[i], k).at({context, d});
        per_cell = total.prompts;
        text += cell_line(x, static_cast<double>(d), 100.0 * total.accuracy());
      }
      x += 1.0;
    }
    figure.data.push_back({file, text});
    figure.script += panels.place(i);
    figure.script +=
        fmt::format("set title {}\nset xlabel '{}'\nset ylabel '{}'\nplot {}\nunset colorbox\n",
                    gnuplot_text(shown[i]), panels.is_lowest(i) ? "context (tokens)" : "",
                    panels.column(i) == 0 ? "depth (%)" : "", cells_command(file));
  }
  figure.script += "unset multiplot\n";
  figure.caption = fmt::format(
      "n = {} prompts a cell; depth 0: the start of the context. As MAGE, "
      "Fig. 4.",
      per_cell);
  return figure;
}

Figure NeedleStudy::curves(const std::vector<Totals>& totals,
                           const std::set<int64_t>& contexts) const {
  // Accuracy against k, one plot a context length.
  const std::vector<std::string> shown = names();
  const std::vector<LineLook> looks = method_looks(shown);
  Panels panels{.count = contexts.size(), .columns = std::min<size_t>(3, contexts.size())};
  panels.right = 220;
  panels.gap_x = 52;
  panels.plot_height = 220;  // the key next to the plot has a line for every method
  Figure figure;
  figure.name = "needle-by-k";
  figure.title = "Accuracy against the keys read";
  figure.width = panels.width();
  figure.height = panels.height();
  figure.script = "set multiplot\nset yrange [-3:103]\nset logscale x 2\n";
  size_t i = 0;
  for (const int64_t context : contexts) {
    const std::string file = fmt::format("context{}.tsv", i);
    std::string text;
    for (const int64_t k : input_.options.set_sizes) {
      std::vector<double> row{static_cast<double>(k)};
      for (const std::string& name : shown) {
        row.push_back(100.0 * of(totals, name, k).at({context, -1}).accuracy());
      }
      text += data_row(row);
    }
    figure.data.push_back({file, text});
    figure.script += panels.place(i);
    figure.script += fmt::format("set title '{} tokens'\nset xlabel '{}'\nset ylabel '{}'\n",
                                 context_name(context), panels.is_lowest(i) ? "k" : "",
                                 panels.column(i) == 0 ? "accuracy (%)" : "");
    figure.script += i + 1 == contexts.size()
                         ? "set key at graph 1.08, graph 1.05 left top Left reverse vertical "
                           "maxrows 20\n"
                         : "unset key\n";
    figure.script += "plot ";
    for (size_t s = 0; s < shown.size(); ++s) {
      figure.script += fmt::format("{}'{}' using 1:{} with linespoints {} pointsize 0.6 title {}",
                                   s == 0 ? "" : ", ", file, s + 2, look_commands(looks[s]),
                                   gnuplot_text(shown[s]));
    }
    figure.script += "\n";
    if (i + 1 < contexts.size()) figure.script += "set key\n";  // or "unset key" would last
    ++i;
  }
  figure.script += "unset multiplot\n";
  figure.caption = fmt::format("n = {} prompts a point.", totals.front().begin()->second.prompts);
  return figure;
}

}  // namespace

std::unique_ptr<Study> make_needle_study(const StudyInput& input) {
  return std::make_unique<NeedleStudy>(input);
}

}  // namespace blockscope
