#include "probe/commands/lens_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/figures/figures.h"
#include "analysis/pass/step_pass.h"
#include "analysis/results/export_csv.h"
#include "analysis/results/export_json.h"
#include "analysis/results/result_table.h"
#include "cmake/build_info/build_info.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "decode_record/base/text.h"
#include "decode_record/files/command_files.h"
#include "probe/run/run_flags.h"
#include "probe/verify/logit_lens.h"

namespace blockscope {
namespace {

struct LensFlags {
  ModelFlags model;
  std::string trace;
  std::string layers, steps, blocks, sequences;
  std::vector<std::string> by;
  std::string csv, json, figure;
  bool force = false;
  bool quiet = false;
};

std::optional<std::vector<int64_t>> indices(const std::string& text, const char* flag,
                                            int64_t least) {
  if (text.empty()) return std::nullopt;
  return parse_index_set(text, flag, least);
}

/// Throws UsageError if the trace was recorded with other weights.
void check_checkpoint(const TraceReader& trace, const LoadedModel& model) {
  const std::string recorded = shape_of(trace.info().meta).model_digest;
  if (recorded.empty() || recorded == model.digest) return;
  throw UsageError(
      fmt::format("{}: expected a trace of this checkpoint (digest {:.12}), got one of another "
                  "(digest {:.12}). "
                  "HINT: blockscope info names the trace's checkpoint",
                  trace.info().path, model.digest, recorded));
}

/// The figure as SVG or PDF, by the ending of the file's name.
std::string drawn(const MetricResult& result, const std::string& path, const Gnuplot& gnuplot) {
  const std::vector<Figure> figures = figures_of(result);
  if (figures.empty()) {
    throw UsageError(
        "--figure: expected values to draw, got none: no mask was decided in the "
        "chosen rows");
  }
  const bool pdf = path.ends_with(".pdf");
  RenderedFigure one = gnuplot.render(figures.front(), {.svg = !pdf, .pdf = pdf});
  return pdf ? std::move(one.pdf) : std::move(one.svg);
}

void run_lens(const CLI::App& command, const LensFlags& flags, const Environment& environment,
              const GnuplotPlace& place) {
  for (const char* option : {"--block-length", "--mask-token-id"}) {
    refuse_idle(command, option, false, "decoding");
  }
  if (!flags.figure.empty() && !flags.figure.ends_with(".svg") && !flags.figure.ends_with(".pdf")) {
    throw UsageError(
        fmt::format("--figure: expected a name with .svg or .pdf, got {}", flags.figure));
  }
  const InterruptGuard guard;  // before the outputs: a signal must not leave a partial one
  std::optional<Gnuplot> gnuplot;
  if (!flags.figure.empty()) gnuplot.emplace(place);  // throws now if gnuplot is missing
  LensOptions options;
  options.layers = indices(flags.layers, "--layer", 0);
  options.steps = indices(flags.steps, "--step", 1);
  options.rows = {indices(flags.sequences, "--sequence", 0), indices(flags.blocks, "--block", 0)};
  const TraceReader trace(flags.trace);
  const LoadedModel model = load_model(flags.model, environment);
  check_checkpoint(trace, model);
  CommandFiles files;
  files.reads(trace.info().path);
  reads_model(files, flags.model, environment);
  std::optional<OutputFile> csv, json, figure;
  if (!flags.csv.empty()) csv.emplace(files.open(flags.csv, flags.force));
  if (!flags.json.empty()) json.emplace(files.open(flags.json, flags.force));
  if (gnuplot) figure.emplace(files.open(flags.figure, flags.force));
  Progress progress(flags.quiet);
  options.progress = [&](int64_t done, int64_t total) {
    progress.update(static_cast<double>(done) / static_cast<double>(total),
                    fmt::format("{} of {}", done, plural(total, "row")));
    InterruptGuard::check();
  };
  AnalysisDocument document;
  document.program =
      fmt::format("blockscope {} ({})", build_info().version, build_info().git_describe);
  document.traces = {trace.info().path};
  document.model_digest = model.digest;
  document.results.push_back(logit_lens(trace, *model.model, options));
  progress.clear();
  if (csv) {
    csv->write([&](std::ostream& out) { write_csv(document, out); });
    csv->commit();
  }
  if (json) {
    json->write([&](std::ostream& out) { write_json(document, out); });
    json->commit();
  }
  if (figure) {
    figure->write(drawn(document.results.front(), flags.figure, *gnuplot));
    figure->commit();
  }
  TableOptions table;
  table.by = flags.by;
  say("{}", result_table(document.results.front(), table));
}

}  // namespace

void add_lens_command(CLI::App& app, const Environment& environment,
                      const GnuplotPlace& gnuplot_place) {
  auto flags = std::make_shared<LensFlags>();
  CLI::App* command = app.add_subcommand(
      "lens", "Show from which layer on the hidden states predict the final token");
  command->footer(
      "Example: blockscope capture models/needle --prompts models/needle/demo.jsonl --limit 2 \\\n"
      "             --gen-length 32 --record full -o run.h5\n"
      "         blockscope lens models/needle run.h5 --csv lens.csv\n"
      "The input of each recorded layer goes through the checkpoint's final norm and LM head. A "
      "row\n"
      "of the table is a layer: the probability of the final token, log2 of its rank, and the "
      "share\n"
      "of masks for which it is the best token.");
  add_model_flags(*command, flags->model);
  command->add_option("trace", flags->trace, "A trace of this checkpoint, of level full")
      ->required();
  command->add_option("--layer,--layers", flags->layers, "Only these layers, such as 0-3,7");
  command->add_option("--step,--steps", flags->steps,
                      "Only these denoising steps of a block, from 1");
  command->add_option("--block,--blocks", flags->blocks, "Only these blocks of a sequence, from 0");
  command->add_option("--sequence,--sequences", flags->sequences, "Only these sequences, from 0");
  command->add_option("--by", flags->by, "Rows and columns of the table: layer, step or both")
      ->delimiter(',')
      ->check(CLI::IsMember({"layer", "step"}));
  command->add_option("--csv", flags->csv, "Write every value to this CSV file");
  command->add_option("--json", flags->json, "Write every value to this JSON file");
  command->add_option("--figure", flags->figure,
                      "Draw the probability by layer and step into this SVG or PDF file");
  command->add_flag("--force", flags->force, "Replace existing outputs");
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress");
  command->callback([flags, command, environment, gnuplot_place] {
    run_lens(*command, *flags, environment, gnuplot_place);
  });
}

}  // namespace blockscope
