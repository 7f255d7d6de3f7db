#include "probe/verify/verify_figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "analysis/figures/palette.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

/// A curve with one line style; its points by rising saving.
struct Curve {
  std::string file;   // its data
  std::string title;  // gnuplot text
  std::vector<const SettingResult*> points;
};

/// One curve per tau and order of the heads in a sweep, without the file's own setting. Without a
/// sweep: the policy alone.
std::vector<Curve> curves_of(const VerifyResult& result) {
  const PolicySetting& own = result.settings.front().setting;
  if (result.settings.size() == 1) {
    const bool by_tau = own.reuse.has_value() && !own.reuse->bound && !own.policy.sure;
    const std::string title =
        by_tau ? fmt::format("'τ = {}'", own.reuse->tau) : gnuplot_text(own.label);
    return {{"policy.tsv", title, {&result.settings.front()}}};
  }
  std::map<std::pair<int64_t, bool>, std::vector<const SettingResult*>> by_tau;
  for (size_t i = 1; i < result.settings.size(); ++i) {
    const ReuseSetting& reuse = *result.settings[i].setting.reuse;
    by_tau[{reuse.tau, reuse.by_effect}].push_back(&result.settings[i]);
  }
  std::vector<Curve> curves;
  for (auto& [key, points] : by_tau) {
    const auto& [tau, by_effect] = key;
    std::stable_sort(points.begin(), points.end(), [](const auto* a, const auto* b) {
      return a->run.reads.saving() < b->run.reads.saving();
    });
    curves.push_back({fmt::format("tau{}{}.tsv", tau, by_effect ? "-effect" : ""),
                      fmt::format("'τ = {}{}'", tau, by_effect ? ", by effect" : ""), points});
  }
  return curves;
}

/// The mask's gamma; "file" for a calibration file without gamma.
std::string point_text(const PolicySetting& setting) {
  if (!setting.reuse.has_value()) return "";
  if (setting.reuse->gamma.has_value()) return fmt::format("{:g}", *setting.reuse->gamma);
  return setting.policy.reuse_file.empty() ? "all heads" : "file";
}

/// Only the curve of the policy's own tau gets gammas as labels: labels of all would overlap.
const Curve* labelled_curve(const VerifyResult& result, const std::vector<Curve>& curves) {
  const PolicySetting& own = result.settings.front().setting;
  if (!own.reuse.has_value() || own.reuse->bound) return nullptr;
  for (const Curve& curve : curves) {
    if (curve.points.front()->setting.reuse->tau == own.reuse->tau) return &curve;
  }
  return nullptr;
}

double accuracy_percent(const PairedScores& scores) {
  return scores.count == 0 ? std::numeric_limits<double>::quiet_NaN() : scores.mean_b * 100.0;
}

double saving_percent(const PolicyResult& point) { return point.run.reads.saving() * 100.0; }

double saving_with_choice(const PolicyResult& point) {
  return point.run.reads.saving_with_choice() * 100.0;
}

/// Upper end of the savings axis, in percent: a round number with room for the last label.
double largest_saving(const VerifyResult& result, const std::vector<Curve>& curves) {
  double most = saving_percent(result.reference);
  for (const Curve& curve : curves) most = std::max(most, saving_percent(*curve.points.back()));
  return std::clamp(std::ceil(most / 10.0 + 0.5) * 10.0, 20.0, 100.0);
}

/// A row: saving %, accuracy %, mean KL, label in quotes, and the saving when choosing counts, %.
std::string point_row(const PolicyResult& point, double accuracy, const std::string& label) {
  std::string row =
      data_row({saving_percent(point), accuracy, std::max(point.fidelity.kl.mean, 0.0)});
  row.pop_back();  // the newline
  return row + fmt::format("\t\"{}\"\t{:.6g}\n", label, saving_with_choice(point));
}

/// A point's label is empty if the point before it is too near.
FigureData curve_data(const Curve& curve, double axis_end) {
  constexpr double kLabelWidth = 0.1;  // of the axis
  std::string text;
  double free_from = 0.0;
  for (const SettingResult* point : curve.points) {
    const double saving = saving_percent(*point);
    const bool labelled = saving >= free_from;
    if (labelled) free_from = saving + kLabelWidth * axis_end;
    text += point_row(*point, accuracy_percent(point->scores),
                      labelled ? point_text(point->setting) : "");
  }
  return {curve.file, text};
}

/// A line from the saving to the saving when choosing counts; empty if nothing is chosen.
std::string choice_plot(const PolicyResult& point, const std::string& file, int y) {
  if (point.run.reads.total_choice() == 0) return "";
  return fmt::format(", '{}' using 1:{}:($5-$1):(0) with vectors nohead lc rgb '#999999' notitle",
                     file, y);
}

/// The colours of the reference and of a single policy, as in all other figures.
LineLook look_of(const PolicySetting& setting) {
  return method_looks(std::vector{setting.label}).front();
}

/// Curves of one policy with several tau have a style each; a policy alone has its method's.
std::string style_of(const VerifyResult& result, size_t curve) {
  return look_commands(result.settings.size() == 1 ? look_of(result.settings.front().setting)
                                                   : line_look(curve));
}

/// `y` is the column. For a pair, the reference's own point comes first.
std::string curve_plots(const VerifyResult& result, const std::vector<Curve>& curves, int y) {
  std::string plots;
  if (result.pair()) {
    plots += choice_plot(result.reference, "reference_point.tsv", y);
    plots += fmt::format(
        ", 'reference_point.tsv' using 1:{} with points pt 6 ps 1.2 lc rgb "
        "'{}' title {}",
        y, look_of(result.reference.setting).color,
        y == 2 ? "''" : gnuplot_text(result.reference.setting.label));
  }
  size_t style = 0;
  for (const Curve& curve : curves) {
    plots += choice_plot(*curve.points.front(), curve.file, y);
    plots += fmt::format(", '{}' using 1:{} with linespoints {} pointsize 0.6 title {}", curve.file,
                         y, style_of(result, style++), curve.title);
  }
  const Curve* labelled = labelled_curve(result, curves);
  if (labelled == nullptr) return plots;
  return plots + fmt::format(
                     ", '{}' using 1:{}:4 with labels left offset 0.6,0.7 font ',9' "
                     "textcolor rgb '#555555' notitle",
                     labelled->file, y);
}

/// Whole decades around the values: gnuplot alone finds no range around one point. A logarithmic
/// axis can't show an exact zero (everything was read); with zeros alone the axis is linear.
std::string kl_axis(const VerifyResult& result, const std::vector<Curve>& curves) {
  std::string axis = "set ylabel 'KL(exact || policy), nats'\nset key inside right bottom\n";
  double low = std::numeric_limits<double>::infinity();
  double high = 0.0;
  const auto take = [&](const PolicyResult& point) {
    const double kl = point.fidelity.kl.mean;
    if (kl > 0.0) low = std::min(low, kl);
    high = std::max(high, kl);
  };
  take(result.reference);
  for (const Curve& curve : curves) {
    for (const SettingResult* point : curve.points) take(*point);
  }
  if (high <= 0.0) return axis + "set yrange [0:1]\n";
  const double bottom = std::floor(std::log10(low));
  const double top = std::max(std::ceil(std::log10(high)), bottom + 1.0);
  return axis +
         fmt::format("set yrange [1e{:.0f}:1e{:.0f}]\nset logscale y\nset format y '10^{{%L}}'\n",
                     bottom, top);
}

/// Title and caption of the first figure.
void describe_tradeoff(const VerifyResult& result, bool labelled, Figure& figure) {
  const PolicySetting& own = result.settings.front().setting;
  const std::string reference = result.reference.setting.label;
  figure.title = own.reuse.has_value() ? "What reuse saves and what it costs"
                                       : fmt::format("What {} saves and what it costs", own.label);
  figure.caption = fmt::format("n = {} prompts, {} undecided positions under replay; ",
                               result.prompts, result.settings.front().fidelity.kl.count);
  if (labelled) {
    figure.caption += fmt::format("the small numbers are gamma at tau = {}; ", own.reuse->tau);
  }
  figure.caption += fmt::format("grey: accuracy of {}, plus and minus its standard error{}",
                                reference, result.pair() ? "; the circle is its own saving" : "");
  if (result.settings.front().run.reads.total_choice() + result.reference.run.reads.total_choice() >
      0) {
    figure.caption += "; the thin line goes to the saving when what choosing reads counts";
  }
}

/// The reference's accuracy as a line over the whole axis, and the reference's own point.
void add_reference(const VerifyResult& result, Figure& figure) {
  const PairedScores& scores = result.settings.front().scores;
  const double low = (scores.mean_a - scores.error_a) * 100.0;
  const double high = (scores.mean_a + scores.error_a) * 100.0;
  const double mean = scores.mean_a * 100.0;
  figure.data.push_back(
      {"reference.tsv", data_row({0.0, low, high, mean}) + data_row({100.0, low, high, mean})});
  if (!result.pair()) return;
  figure.data.push_back(
      {"reference_point.tsv", point_row(result.reference, scores.count == 0 ? kNaN : mean, "")});
}

Figure tradeoff_figure(const VerifyResult& result) {
  const std::vector<Curve> curves = curves_of(result);
  const PairedScores& scores = result.settings.front().scores;
  Figure figure;
  figure.name = kVerifyFigures[0];
  figure.width = 900;
  figure.height = 400;
  describe_tradeoff(result, labelled_curve(result, curves) != nullptr, figure);
  const double axis_end = largest_saving(result, curves);
  for (const Curve& curve : curves) figure.data.push_back(curve_data(curve, axis_end));
  add_reference(result, figure);
  figure.script = "set multiplot layout 1,2\n" + fmt::format("set xrange [0:{:g}]\n", axis_end) +
                  "set xlabel 'external key bytes not read (%)'\n"
                  "set key inside left bottom\n";
  if (scores.count > 0) {
    figure.script += fmt::format(
        "set ylabel 'accuracy (%, n = {})'\n"
        "set yrange [0:105]\n"
        "plot 'reference.tsv' using 1:2:3 with filledcurves fillcolor rgb '#DDDDDD' notitle, "
        "'reference.tsv' using 1:4 with lines lc rgb '{}' dt 2 title {}{}\n",
        scores.count, look_of(result.reference.setting).color,
        gnuplot_text(result.reference.setting.label), curve_plots(result, curves, 2));
  } else {
    figure.script +=
        "set title 'no prompt has an answer'\nset yrange [0:1]\n"
        "plot NaN notitle\nset title\n";
  }
  figure.script += kl_axis(result, curves) + "plot " + curve_plots(result, curves, 3).substr(2) +
                   "\nunset multiplot\n";
  return figure;
}

FigureData context_data(const std::string& file, const FreeRun& run, int64_t block_length) {
  std::string text;
  for (const ContextTime& time : run.context_times) {
    text += data_row({time.context_length, time.milliseconds.median, time.milliseconds.low,
                      time.keys_read + static_cast<double>(block_length)});
  }
  return {file, text};
}

/// One setting per curve: the file's own mask if the sweep has it, else the one that saves most.
const SettingResult* point_of(const VerifyResult& result, const Curve& curve) {
  const PolicySetting& own = result.settings.front().setting;
  const SettingResult* chosen = curve.points.back();
  for (const SettingResult* point : curve.points) {
    if (own.reuse.has_value() && point->setting.reuse->reuse == own.reuse->reuse) chosen = point;
  }
  return chosen;
}

std::string context_title(const PolicySetting& setting) {
  const bool by_tau = setting.reuse.has_value() && !setting.reuse->bound && !setting.policy.sure;
  if (!by_tau) return gnuplot_text(setting.label);
  const std::string point = point_text(setting);
  return setting.reuse->gamma.has_value()
             ? fmt::format("'τ = {}, γ = {}'", setting.reuse->tau, point)
             : fmt::format("'τ = {}, {}'", setting.reuse->tau, point);
}

Figure context_figure(const VerifyResult& result, int64_t block_length) {
  Figure figure;
  figure.name = kVerifyFigures[1];
  figure.title = "Attention per denoising step against context length";
  figure.caption =
      "per sequence, all layers, free-running; medians over steps of similar context length; keys "
      "are a mean over layers and KV heads, with the block's own; a row read to choose keys counts "
      "half a key";
  figure.width = 900;
  figure.height = 400;
  figure.data.push_back(context_data("reference.tsv", result.reference.run, block_length));
  const auto reference = [&](int y) {
    return fmt::format(
        "plot 'reference.tsv' using 1:{} with linespoints lc rgb '{}' dt 2 "
        "title {}",
        y, look_of(result.reference.setting).color, gnuplot_text(result.reference.setting.label));
  };
  std::string time = reference(2);
  std::string keys = reference(4);
  size_t style = 0;
  for (const Curve& curve : curves_of(result)) {
    const SettingResult* point = point_of(result, curve);
    figure.data.push_back(context_data(curve.file, point->run, block_length));
    const auto plot = [&](int y) {
      return fmt::format(", '{}' using 1:{} with linespoints {} pointsize 0.6 title {}", curve.file,
                         y, style_of(result, style), context_title(point->setting));
    };
    time += plot(2);
    keys += plot(4);
    ++style;
  }
  // The key is above the plot: inside, it would cover a curve.
  figure.script =
      "set multiplot layout 1,2\nset key outside top center horizontal\nset xrange [0:*]\n"
      "set yrange [0:*]\n"
      "set xlabel 'context length (external keys)'\n"
      "set ylabel 'attention per step (ms)'\n" +
      time + "\nset ylabel 'keys read per step'\n" + keys + "\nunset multiplot\n";
  return figure;
}

}  // namespace

std::vector<Figure> verify_figures(const VerifyResult& result, int64_t block_length) {
  std::vector<Figure> figures{tradeoff_figure(result)};
  if (result.reference.run.context_times.size() > 1)
    figures.push_back(context_figure(result, block_length));
  return figures;
}

}  // namespace blockscope
