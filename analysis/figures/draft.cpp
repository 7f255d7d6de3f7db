// Figures of drafted traces: how many drafted tokens the target accepts, when, and what other block
// lengths would gain.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/figures/bar_chart.h"
#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/palette.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

constexpr std::size_t kMostTasks = 24;

/// One plot of draft_reasons: bars of an array of one axis.
struct Reason {
  BarChart chart;
  ResultArray array;
  std::string name;  ///< name of the first column of its numbers
};

/// A group's label is the lower end of its bin, because ranges would not fit below the bars.
Reason reason_of(const ResultArray& array, const std::string& axis, std::string name,
                 std::string x_label, std::string y_label = "share accepted") {
  Reason reason{{.x_label = std::move(x_label), .y_label = std::move(y_label)},
                mean_over_others(array, {axis}),
                std::move(name)};
  const ResultAxis& bins = reason.array.axes.front();
  for (const double lower : bins.index) reason.chart.groups.push_back(fmt::format("{:g}", lower));
  reason.chart.series = {{"", reason.array.values}};
  reason.chart.most_labels = 10;
  return reason;
}

std::vector<Reason> reasons_of(const MetricResult& result) {
  std::vector<Reason> reasons{
      reason_of(result.array("by_draft_entropy"), "draft_entropy", "draft entropy",
                "entropy of the draft, nats, from this value"),
      reason_of(result.array("by_target_entropy"), "target_entropy", "target entropy",
                "entropy of the target, nats, from this value"),
      reason_of(result.array("within_best"), "candidates", "candidates",
                "target\u2019s token among the draft\u2019s best", "share of positions"),
      reason_of(result.array("by_depth"), "context_length", "context length",
                "context length, from this value")};
  if (const ResultArray* mass = result.find("by_external_mass")) {
    reasons.push_back(reason_of(*mass, "mass_bin", "external mass",
                                "attention to the context\u2019s features, from this share"));
  }
  if (const ResultArray* chosen = result.find("by_chosen")) {
    reasons.push_back(reason_of(*chosen, "candidate", "candidate",
                                "candidate that the selector took (0: the draft\u2019s best)"));
  }
  std::erase_if(reasons, [](const Reason& reason) { return range_of(reason.array).empty(); });
  return reasons;
}

double reached_positions(const MetricResult& result) {
  return static_cast<double>(total_terms(result.array("acceptance")));
}

}  // namespace

std::optional<ReportTable> draft_means(const MetricResult& result) {
  const ResultArray& means = result.array("means");
  const ResultArray& tasks = result.array("length_by_task");
  ReportTable part;
  part.name = "draft-means";
  part.title = "Drafts in numbers";
  part.caption =
      "Tokens a round: the accepted ones and the target\u2019s own one, without tokens beyond the "
      "answer\u2019s length. Acceptance and entropies (in nats): at positions before which every "
      "drafted token was accepted. A task is a sequence\u2019s name without the numbers at its "
      "end.";
  part.table.header = {"quantity", "mean", "n"};
  const auto add = [&](const std::string& name, const ResultArray& array, std::size_t i) {
    if (!std::isfinite(array.values[i])) return;
    part.table.rows.push_back({name, report_number(array.values[i]), count_text(array.terms[i])});
  };
  for (std::size_t i = 0; i < means.values.size(); ++i) add(means.axes[0].label(i), means, i);
  const std::size_t shown = std::min(tasks.axes[0].size(), kMostTasks);
  for (std::size_t i = 0; shown > 1 && i < shown; ++i) {
    add("tokens a round, " + tasks.axes[0].label(i), tasks, i);
  }
  if (const ResultArray* selector = result.find("selector")) {
    for (std::size_t i = 0; i < selector->values.size(); ++i) {
      add("selector: " + selector->axes[0].label(i), *selector, i);
    }
  }
  const ResultArray* accepted = result.find("mass_accepted");
  if (accepted != nullptr) {
    add("external mass, accepted", mean_over_others(*accepted, {}), 0);
    add("external mass, rejected", mean_over_others(result.array("mass_refused"), {}), 0);
  }
  if (part.table.empty()) return std::nullopt;
  return part;
}

std::optional<ReportFigure> draft_lengths(const MetricResult& result) {
  const ResultArray& lengths = result.array("lengths");
  double rounds = 0.0;
  for (const double count : lengths.values) rounds += count;
  if (rounds <= 0.0) return std::nullopt;
  BarChart chart{.x_label = "tokens that a round added", .y_label = "share of rounds"};
  ReportFigure part;
  part.numbers.header = {"tokens", "rounds", "share"};
  chart.series = {{"", {}}};
  for (std::size_t i = 0; i < lengths.values.size(); ++i) {
    const double share = lengths.values[i] / rounds;
    chart.groups.push_back(lengths.axes[0].label(i));
    chart.series[0].values.push_back(share);
    part.numbers.rows.push_back({lengths.axes[0].label(i),
                                 count_text(std::llround(lengths.values[i])),
                                 report_number(share)});
  }
  chart.y_upper = round_up_to(*std::ranges::max_element(chart.series[0].values));
  part.figure.name = "draft-lengths";
  part.figure.title = "How many tokens a round added";
  part.figure.caption = fmt::format(
      "Accepted tokens and the target\u2019s own one: {} on average, at most {}. n = {} rounds.",
      report_number(result.array("means").values[0], 2), lengths.values.size(),
      count_text(std::llround(rounds)));
  draw_bars(chart, part.figure);
  return part;
}

std::optional<ReportFigure> draft_positions(const MetricResult& result) {
  const ResultArray& survival = result.array("survival");
  const ResultArray& acceptance = result.array("acceptance");
  if (range_of(survival).empty()) return std::nullopt;
  LineChart chart{.x_label = "position in the block", .y_label = "share"};
  chart.curves = curves_of(survival, "position", "", "accepted, of all rounds");
  chart.curves.push_back(
      curves_of(acceptance, "position", "", "accepted, of those reached").front());
  if (const ResultArray* among = result.find("among_candidates")) {
    chart.curves.push_back(
        curves_of(*among, "position", "", "target\u2019s token among the candidates").front());
  }
  ReportFigure part;
  part.figure.name = "draft-positions";
  part.figure.title = "How far into the block acceptance reaches";
  part.figure.caption = fmt::format(
      "A position is reached if every drafted token before it was accepted. n = {} rounds, {} "
      "reached positions.",
      count_text(survival.terms.front()), count_text(total_terms(acceptance)));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("position", chart.curves);
  part.numbers.header.emplace_back("reached");
  for (std::size_t i = 0; i < part.numbers.rows.size(); ++i) {
    part.numbers.rows[i].push_back(terms_text(acceptance, {i}));
  }
  return part;
}

std::optional<ReportFigure> draft_reasons(const MetricResult& result) {
  const std::vector<Reason> reasons = reasons_of(result);
  if (reasons.empty()) return std::nullopt;
  Panels panels{.count = reasons.size(), .columns = 2, .plot_width = 330, .plot_height = 150};
  panels.gap_x = 90;
  panels.gap_y = 72;
  panels.top = 16;
  ReportFigure part;
  part.numbers.header = {"by", "from", "share", "n"};
  std::string script = "set multiplot\nunset key\n";
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    const Reason& reason = reasons[i];
    const std::string file = fmt::format("reason-{}.tsv", i);
    script += panels.place(i) + bar_commands(reason.chart, file);
    part.figure.data.push_back({file, bar_data(reason.chart)});
    for (std::size_t bin = 0; bin < reason.array.values.size(); ++bin) {
      part.numbers.rows.push_back({reason.name, reason.array.axes[0].label(bin),
                                   report_number(reason.array.values[bin]),
                                   terms_text(reason.array, {bin})});
    }
  }
  part.figure.name = "draft-reasons";
  part.figure.title = "When drafts are accepted";
  part.figure.caption = fmt::format(
      "Share of reached positions that were accepted, by the entropies of both models and by the "
      "number of keys before the block{}. Also: share of positions where the target\u2019s token "
      "is among that many best tokens of the draft. Bars with few positions are uncertain; the "
      "numbers below have their n. n = {} reached positions.{}",
      result.find("by_external_mass") == nullptr
          ? ""
          : ", and by the share of the draft\u2019s attention that goes to the context\u2019s "
            "features (mean over heads, layers together)",
      count_text(std::llround(reached_positions(result))),
      result.find("by_chosen") == nullptr
          ? ""
          : " The selector of a DFlash 2 draft takes one of its candidates, which are numbered by "
            "falling probability.");
  part.figure.width = panels.width();
  part.figure.height = panels.height();
  part.figure.script = script + "unset multiplot\n";
  return part;
}

std::optional<ReportFigure> draft_speedup(const MetricResult& result) {
  const ResultArray* speedup = result.find("speedup");
  if (speedup == nullptr || range_of(*speedup).empty()) return std::nullopt;
  const ResultAxis& lengths = speedup->axes.front();
  const auto best =
      static_cast<std::size_t>(std::ranges::max_element(speedup->values) - speedup->values.begin());
  LineChart left{.x_label = "block length", .y_label = "tokens/s relative to the target alone"};
  left.curves = curves_of(*speedup, "block_length", "", "");
  left.curves.push_back({"",
                         {lengths.index.front(), lengths.index.back()},
                         {1.0, 1.0},
                         std::string(okabe_ito::kGrey),
                         0,
                         0,
                         0.0});
  left.curves.push_back({"",
                         {lengths.index[best]},
                         {speedup->values[best]},
                         std::string(okabe_ito::kVermilion),
                         0,
                         0,
                         1.2});
  left.y_upper = round_up_to(std::max(1.0, range_of(*speedup).greatest));
  const ResultArray& draft = result.array("draft_time");
  const ResultArray& target = result.array("target_time");
  LineChart right{.x_label = "block length", .y_label = "time of a round, ms"};
  right.curves = curves_of(target, "block_length", "", "target");
  right.curves.push_back(curves_of(draft, "block_length", "", "draft").front());
  right.y_upper = round_up_to(std::max(range_of(target).greatest, range_of(draft).greatest));
  Panels panels{.count = 2, .columns = 2, .plot_width = 330, .plot_height = 200};
  panels.gap_x = 90;
  panels.top = 34;
  ReportFigure part;
  part.figure.name = "draft-speedup";
  part.figure.title = "What other block lengths would gain";
  const std::string verdict =
      best == 0 ? "No block length is faster than the target alone (grey)."
                : fmt::format(
                      "Best (marked): blocks of {}, with {} times the tokens/s of the target "
                      "alone (grey).",
                      lengths.label(best), report_number(speedup->values[best], 2));
  part.figure.caption = fmt::format(
      "Predicted from this run alone: the tokens a round if its drafts are cut to b positions, and "
      "the measured times of its passes. {} The prediction assumes that a shorter block drafts the "
      "same tokens as the beginning of a longer one. n = {} rounds.",
      verdict, count_text(speedup->terms.front()));
  part.figure.width = panels.width();
  part.figure.height = panels.height();
  part.figure.script = "set multiplot\nunset key\n" + panels.place(0) +
                       chart_commands(left, "speedup.tsv") + "set key at " +
                       panels.at(panels.width() - panels.right, 4) + " horizontal right top\n" +
                       panels.place(1) + chart_commands(right, "times.tsv") + "unset multiplot\n";
  part.figure.data = {{"speedup.tsv", chart_data(left)}, {"times.tsv", chart_data(right)}};
  left.curves.front().title = "predicted speed-up";
  Curve tokens =
      curves_of(result.array("tokens_per_round"), "block_length", "", "tokens a round").front();
  part.numbers = curve_numbers(
      "block length", {std::move(tokens), right.curves[1], right.curves[0], left.curves.front()});
  part.numbers.header[2] = "draft, ms";
  part.numbers.header[3] = "target, ms";
  return part;
}

}  // namespace blockscope
