#include "probe/verify/verify_figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace blockscope {
namespace {

/// Settings of one curve by rising saving; without a sweep the file's own setting alone.
using Curves = std::map<int64_t, std::vector<const SettingResult*>>;  // by tau

Curves curves_of(const VerifyResult& result) {
  Curves curves;
  const size_t first = result.settings.size() > 1 ? 1 : 0;
  for (size_t i = first; i < result.settings.size(); ++i) {
    curves[result.settings[i].setting.tau].push_back(&result.settings[i]);
  }
  for (auto& [tau, curve] : curves) {
    std::stable_sort(curve.begin(), curve.end(), [](const auto* a, const auto* b) {
      return a->run.reads.saving() < b->run.reads.saving();
    });
  }
  return curves;
}

std::string tau_file(int64_t tau) { return fmt::format("tau{}.tsv", tau); }

std::string gamma_text(const ReuseSetting& setting) {
  return setting.gamma.has_value() ? fmt::format("{:g}", *setting.gamma) : std::string("file");
}

double accuracy_percent(const PairedScores& scores) {
  return scores.count == 0 ? std::numeric_limits<double>::quiet_NaN() : scores.mean_b * 100.0;
}

double saving_percent(const SettingResult& point) { return point.run.reads.saving() * 100.0; }

/// Right end of the axis of savings, in percent: a round number with room for the last label.
double largest_saving(const Curves& curves) {
  double most = 0.0;
  for (const auto& [tau, curve] : curves) {
    for (const SettingResult* point : curve) most = std::max(most, saving_percent(*point));
  }
  return std::clamp(std::ceil(most / 10.0 + 0.5) * 10.0, 20.0, 100.0);
}

/// Saving %, accuracy %, mean KL, gamma in quotes; empty where the label before it is too near.
FigureData curve_data(int64_t tau, const std::vector<const SettingResult*>& curve,
                      double axis_end) {
  constexpr double kLabelWidth = 0.1;  // of the axis
  std::string text;
  double free_from = 0.0;
  for (const SettingResult* point : curve) {
    const double saving = saving_percent(*point);
    std::string row =
        data_row({saving, accuracy_percent(point->scores), std::max(point->fidelity.kl.mean, 0.0)});
    row.pop_back();  // the newline
    const bool labelled = saving >= free_from;
    if (labelled) free_from = saving + kLabelWidth * axis_end;
    text += row + fmt::format("\t\"{}\"\n", labelled ? gamma_text(point->setting) : "");
  }
  return {tau_file(tau), text};
}

/// One line style per tau; `y` is the column.
std::string curve_plots(const Curves& curves, int y) {
  std::string plots;
  int style = 0;
  for (const auto& [tau, curve] : curves) {
    ++style;
    plots += fmt::format(", '{}' using 1:{} with linespoints lt {} title 'τ = {}'", tau_file(tau),
                         y, (style - 1) % 7 + 1, tau);
  }
  return plots;
}

/// The gammas stand beside the curve of the most common tau only: with all they would overlap.
std::string gamma_labels(const Curves& curves, int64_t tau, int y) {
  if (curves.count(tau) == 0) return "";
  return fmt::format(
      ", '{}' using 1:{}:4 with labels left offset 0.6,0.7 font ',9' textcolor rgb '#555555' "
      "notitle",
      tau_file(tau), y);
}

/// Whole decades around the values: gnuplot can't find a range around one point by itself. An exact
/// zero (nothing reused) has no place on a logarithmic axis; with zeros alone the axis is linear.
std::string kl_axis(const Curves& curves) {
  std::string axis = "set ylabel 'KL(dense || reuse), nats'\nset key inside right bottom\n";
  double low = std::numeric_limits<double>::infinity();
  double high = 0.0;
  for (const auto& [tau, curve] : curves) {
    for (const SettingResult* point : curve) {
      const double kl = point->fidelity.kl.mean;
      if (kl > 0.0) low = std::min(low, kl);
      high = std::max(high, kl);
    }
  }
  if (high <= 0.0) return axis + "set yrange [0:1]\n";
  const double bottom = std::floor(std::log10(low));
  const double top = std::max(std::ceil(std::log10(high)), bottom + 1.0);
  return axis +
         fmt::format("set yrange [1e{:.0f}:1e{:.0f}]\nset logscale y\nset format y '10^{{%L}}'\n",
                     bottom, top);
}

Figure tradeoff_figure(const VerifyResult& result) {
  const Curves curves = curves_of(result);
  const PairedScores& scores = result.settings.front().scores;
  const int64_t labelled = result.settings.front().setting.tau;
  Figure figure;
  figure.name = kVerifyFigures[0];
  figure.title = "What reuse saves and what it costs";
  figure.caption = fmt::format(
      "n = {} prompts, {} masked positions under replay; the small numbers are gamma at tau = {}; "
      "grey: dense accuracy, plus and minus its standard error",
      result.prompts, result.settings.front().fidelity.kl.count, labelled);
  figure.width = 900;
  figure.height = 400;
  const double axis_end = largest_saving(curves);
  for (const auto& [tau, curve] : curves) {
    figure.data.push_back(curve_data(tau, curve, axis_end));
  }
  figure.data.push_back(
      {"dense.tsv",
       data_row({0.0, (scores.mean_a - scores.error_a) * 100.0,
                 (scores.mean_a + scores.error_a) * 100.0, scores.mean_a * 100.0}) +
           data_row({100.0, (scores.mean_a - scores.error_a) * 100.0,
                     (scores.mean_a + scores.error_a) * 100.0, scores.mean_a * 100.0})});
  figure.script = "set multiplot layout 1,2\n" + fmt::format("set xrange [0:{:g}]\n", axis_end) +
                  "set xlabel 'external key bytes not read (%)'\n"
                  "set key inside left bottom\n";
  if (scores.count > 0) {
    figure.script += fmt::format(
        "set ylabel 'accuracy (%, n = {})'\n"
        "set yrange [0:105]\n"
        "plot 'dense.tsv' using 1:2:3 with filledcurves fillcolor rgb '#DDDDDD' notitle, "
        "'dense.tsv' using 1:4 with lines lc rgb '#777777' dt 2 title 'dense'",
        scores.count);
    figure.script += curve_plots(curves, 2) + gamma_labels(curves, labelled, 2) + "\n";
  } else {
    figure.script +=
        "set title 'no prompt has an answer'\nset yrange [0:1]\n"
        "plot NaN notitle\nset title\n";
  }
  figure.script += kl_axis(curves) + "plot " +
                   (curve_plots(curves, 3) + gamma_labels(curves, labelled, 3)).substr(2) +
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

/// One setting per tau: the file's own gamma where the sweep has it, else the one that saves most.
std::map<int64_t, const SettingResult*> one_per_tau(const VerifyResult& result) {
  std::map<int64_t, const SettingResult*> chosen;
  for (auto& [tau, curve] : curves_of(result)) {
    chosen[tau] = curve.back();
    for (const SettingResult* point : curve) {
      if (point->setting.reuse == result.settings.front().setting.reuse) chosen[tau] = point;
    }
  }
  return chosen;
}

Figure context_figure(const VerifyResult& result, int64_t block_length) {
  Figure figure;
  figure.name = kVerifyFigures[1];
  figure.title = "Attention per denoising step against context length";
  figure.caption =
      "per sequence, all layers, free-running; medians over steps of similar context length; keys "
      "are a mean over layers and KV heads, with the block's own";
  figure.width = 900;
  figure.height = 400;
  figure.data.push_back(context_data("dense.tsv", result.dense, block_length));
  std::string time =
      "plot 'dense.tsv' using 1:2 with linespoints lc rgb '#777777' dt 2 title 'dense'";
  std::string keys =
      "plot 'dense.tsv' using 1:4 with linespoints lc rgb '#777777' dt 2 title 'dense'";
  int style = 0;
  for (const auto& [tau, setting] : one_per_tau(result)) {
    figure.data.push_back(context_data(tau_file(tau), setting->run, block_length));
    ++style;
    const auto plot = [&](int y) {
      return fmt::format(", '{}' using 1:{} with linespoints lt {} title 'τ = {}, γ = {}'",
                         tau_file(tau), y, (style - 1) % 7 + 1, tau, gamma_text(setting->setting));
    };
    time += plot(2);
    keys += plot(4);
  }
  // The key above the plot: inside, some curve always runs under it.
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
  if (result.dense.context_times.size() > 1)
    figures.push_back(context_figure(result, block_length));
  return figures;
}

}  // namespace blockscope
