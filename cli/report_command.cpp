// `blockscope report`: shows traces on one self-contained page; writes its figures for papers too.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "analysis/metrics/own_metrics.h"
#include "analysis/report/report.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "command_line/options.h"
#include "command_line/pass_progress.h"
#include "command_line/printable.h"
#include "command_line/standard_streams.h"
#include "command_line/text_output.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

struct ReportFlags {
  std::vector<std::string> traces;
  std::string output;
  std::string figures;
  bool force = false;
  bool quiet = false;
  ReportOptions options;
};

std::vector<fs::path> figure_files(const std::string& folder, const std::vector<Figure>& figures) {
  std::vector<fs::path> files;
  for (const Figure& figure : figures) {
    files.push_back(fs::path(folder) / (figure.name + ".svg"));
    files.push_back(fs::path(folder) / (figure.name + ".pdf"));
  }
  return files;
}

/// Opens the figures before anything is written: an existing file must stop the command early.
std::vector<OutputFile> open_figures(const ReportFlags& flags, const std::vector<Figure>& figures,
                                     CommandFiles& command_files) {
  std::vector<OutputFile> files;
  if (flags.figures.empty()) return files;
  std::error_code error;
  fs::create_directories(flags.figures, error);
  if (error) {
    throw Error(fmt::format("{}: can't make the folder: {}", flags.figures, error.message()));
  }
  for (const fs::path& path : figure_files(flags.figures, figures)) {
    files.push_back(command_files.open(path.string(), flags.force));
  }
  return files;
}

void run_report(const ReportFlags& flags) {
  const InterruptGuard guard;  // before the first output: a signal must not leave a partial one
  const Gnuplot gnuplot(gnuplot_place());
  CommandFiles files;
  for (const std::string& trace : flags.traces) files.reads_trace(trace);
  files.reads_trace(flags.options.backbone);
  files.reads(flags.options.compare);
  TextOutput output(files, flags.output, flags.force);
  if (!flags.figures.empty()) check_meant_as_name(flags.figures);
  PassProgress progress(flags.quiet, 0);
  const TraceGroup traces(flags.traces);
  ReportOptions options = flags.options;
  options.progress = progress.callback();
  for (const OwnMetric& metric : own_metrics()) {
    PassOptions pass;
    pass.threads = options.threads;
    pass.progress = options.progress;
    try {
      options.own.push_back(metric.compute(traces, std::nullopt, pass));
    } catch (const TraceError& error) {  // another level, or nothing to compute it from
      if (!flags.quiet) note("{} is not on the page: {}\n", metric.name, printable(error.what()));
    }
  }
  const ReportPage page = make_report(traces, options);
  const std::vector<Figure> figures = figures_of(page);
  std::vector<OutputFile> figure_outputs = open_figures(flags, figures, files);
  const FigureFormats formats{.svg = true, .pdf = !flags.figures.empty(), .png = false};
  const auto rendered =
      gnuplot.render_all(figures, formats, options.threads, [&](std::size_t done, std::size_t all) {
        progress.show(done, all, fmt::format("drawing: {} of {} figures", done, all));
      });
  const std::string html = page_html(page, rendered);
  if (!output.is_standard_output()) output.write(html);
  for (std::size_t i = 0; i < figure_outputs.size(); ++i) {
    figure_outputs[i].write(i % 2 == 0 ? rendered[i / 2].svg : rendered[i / 2].pdf);
  }
  InterruptGuard::check();
  for (OutputFile& file : figure_outputs) file.commit();
  output.commit();
  progress.finish();
  if (output.is_standard_output()) output.write(html);
  if (flags.quiet || output.is_standard_output()) return;
  for (const std::string& finding : page.findings) fmt::print("{}\n", printable(finding));
  fmt::print("{}: {}, {:.1f} MB\n", printable(flags.output),
             plural(static_cast<std::int64_t>(figures.size()), "figure"),
             static_cast<double>(html.size()) / 1e6);
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto* command = app.add_subcommand("report", "Make one HTML page with figures, tables and text");
  auto flags = std::make_shared<ReportFlags>();
  ReportOptions& options = flags->options;
  command->add_option("traces", flags->traces, "Trace files of one model, finished or .partial")
      ->required();
  command->add_option("-o,--output", flags->output, "Write this HTML file (-: standard output)")
      ->required();
  command->add_flag("--force", flags->force, "Replace existing outputs");
  command->add_option("--figures", flags->figures,
                      "Also write every figure as SVG and PDF into this folder");
  const auto add_index = [&](const char* name, auto& value, const char* text) {
    command->add_option(name, value, text)->check(whole_number(0));
  };
  add_index("--layer", options.layer,
            "Show heatmaps of this layer (default: the middle recorded one)");
  add_index("--head", options.head, "Show heatmaps of this query head (default: all together)");
  add_index("--sequence", options.sequence,
            "Show trajectory and heatmaps of this sequence (default: that of the default block)");
  add_index("--block", options.block,
            "Show trajectory and heatmaps of this block (default: the one with the most text)");
  command->add_option(
      "--backbone", options.backbone,
      "Also compare with this trace of the backbone, captured with --replay of the trace");
  command->add_option("--compare", options.compare,
                      "Also show what this file of blockscope.compare measured, and its frames");
  command->add_option("--title", options.title, "Set the title of the page");
  add_plugin_option(*command, "metrics");
  add_threads_option(*command, options.threads);
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress and no summary");
  command->footer(
      "Among blocks with equally many steps, the default is the one with most distinct tokens.\n"
      "Example: blockscope report run.h5 -o report.html --figures figures/");
  command->callback([flags] { run_report(*flags); });
}

}  // namespace blockscope
