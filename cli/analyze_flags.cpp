#include "cli/analyze_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "analysis/metrics/similarity_matrix.h"
#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"

namespace blockscope {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  blockscope analyze run.h5\n"
    "  blockscope analyze run.h5 --metric similarity --layer 0-3 --by head\n"
    "  blockscope analyze run.r*.h5 --csv run.csv --hdf5 run-analysis.h5\n"
    "  blockscope analyze run.h5 --metric recall --set-sizes 8,16,32 --json - | jq .metrics[0]\n"
    "  blockscope analyze run.h5 --backbone backbone.h5\n"
    "  blockscope analyze run.h5 --matrix token --field external --layer 3 --step 1 --csv "
    "fig1.csv\n"
    "An index list is A, A-B (both ends included), or several of these with commas: 0-3,7.\n"
    "Means are weighted by their number of terms, which every table and export shows.\n"
    "docs/glossary.md "
    "explains\n"
    "the names.";

std::vector<std::int64_t> indices_of(const std::string& text, const std::string& flag,
                                     const std::vector<std::int64_t>& there, std::int64_t end) {
  const auto wanted = parse_index_set(text, flag, 0, end);
  for (const std::int64_t index : wanted) {
    if (std::ranges::find(there, index) != there.end()) continue;
    throw UsageError(fmt::format("{}: {} was not recorded. HINT: the trace has {}", flag, index,
                                 fmt::join(there, ",")));
  }
  return wanted;
}

double parse_tau(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  try {
    std::size_t used = 0;
    const double tau = std::stod(text, &used);
    if (used == text.size() && tau > 0.0 && std::isfinite(tau)) return tau;
  } catch (const std::logic_error&) {  // no number, or one beyond a double
  }
  throw UsageError(fmt::format("--taus: expected numbers above 0 or inf, got '{}'", text));
}

void add_output_flags(CLI::App& command, AnalyzeFlags& flags) {
  const std::string group = "Output";
  command
      .add_option("--by", flags.by,
                  "Choose the axes of the tables: rows, or rows,columns (layer, head, step, k ...)")
      ->delimiter(',')
      ->expected(1, 2)
      ->group(group);
  command.add_option("--csv", flags.csv, "Write all values, one row per cell (-: standard output)")
      ->group(group);
  command
      .add_option("--json", flags.json, "Write all values as one JSON object (-: standard output)")
      ->group(group);
  command
      .add_option("--hdf5", flags.hdf5, "Write all values as HDF5; xarray shows the axes by name")
      ->group(group);
  command.add_flag("--force", flags.force, "Replace existing outputs")->group(group);
  command.add_flag("-q,--quiet", flags.quiet, "Print no tables and no progress")->group(group);
}

void add_selection_flags(CLI::App& command, AnalyzeFlags& flags) {
  const std::string group = "Selection";
  command.add_option("--layer,--layers", flags.layers, "Select layers, such as 0-3,7")
      ->group(group);
  command
      .add_option("--head,--heads", flags.heads,
                  "Select query heads; for sets, keys and values: the KV heads that they use")
      ->group(group);
  command.add_option("--step,--steps", flags.steps, "Select denoising steps of a block, from 1")
      ->group(group);
  command.add_option("--block,--blocks", flags.blocks, "Select blocks of a sequence, from 0")
      ->group(group);
  command
      .add_option("--sequence,--sequences", flags.sequences, "Select sequences of a trace, from 0")
      ->group(group);
}

void add_matrix_flags(CLI::App& command, AnalyzeFlags& flags) {
  const std::string group = "One matrix";
  command
      .add_option("--matrix", flags.matrix,
                  "Compare tokens of two steps (token) or the steps of one block (step), or show "
                  "which keys "
                  "each position looks at (attention)")
      ->check(CLI::IsMember(std::vector<std::string>(kMatrixKinds.begin(), kMatrixKinds.end())))
      ->group(group);
  command.add_option("--field", flags.field, "Compare this field")
      ->check(CLI::IsMember({"external", "internal", "query", "hidden", "key", "value"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--row-a", flags.row_a,
                  "Take this trace row as the first step (instead of --step)")
      ->check(whole_number(0))
      ->group(group);
  command.add_option("--row-b", flags.row_b, "Take this trace row as the second step")
      ->check(whole_number(0))
      ->group(group);
}

}  // namespace

void add_analyze_flags(CLI::App& command, AnalyzeFlags& flags) {
  command.add_option("traces", flags.traces, "Traces of one model, finished or .partial");
  command
      .add_option("--metric,--metrics", flags.metrics,
                  "Compute these metrics, separated by commas (default: all that the traces allow)")
      ->delimiter(',');
  add_plugin_option(command, "metrics");
  command.add_flag("--list", flags.list, "List the metrics and the --record level each needs");
  command.add_flag("--from-summary", flags.from_summary,
                   "Read the recorder's summaries even where the trace has the arrays");
  command.add_option("--set-sizes", flags.set_sizes,
                     "Compute recall for these k (default: powers of 2 up to the recorded k)");
  command
      .add_option("--taus", flags.taus, "Compute the reuse error for these tau, such as 1,2,inf")
      ->delimiter(',');
  add_count_option(command, flags.count);
  command
      .add_option("--sink-factor", flags.sink_factor,
                  "Call a key a sink if it receives more than this times the mean")
      ->check(real_number(0.0, 1e9, false))
      ->capture_default_str();
  command.add_option("--backbone", flags.backbone,
                     "Compare the five query stages with this backbone trace, captured with "
                     "--replay of the trace");
  add_selection_flags(command, flags);
  add_matrix_flags(command, flags);
  add_output_flags(command, flags);
  add_threads_option(command, flags.threads);
  command
      .add_option("--memory", flags.memory_mib, "Hold at most this many MiB of arrays at one time")
      ->check(whole_number(1, 1U << 20U))
      ->capture_default_str();
  command.footer(kExamples);
}

void add_count_option(CLI::App& command, ReuseCount& count) {
  command
      .add_option_function<std::string>(
          "--count",
          [&count](const std::string& name) { count = parse_reuse_count("--count", name); },
          "Count for tau the tokens since the last read, or those of this step")
      ->check(CLI::IsMember(std::vector<std::string>(kReuseCounts.begin(), kReuseCounts.end())))
      ->default_str(std::string(to_string(count)));
}

std::vector<std::pair<std::string, std::string>> given_selection(const AnalyzeFlags& flags) {
  std::vector<std::pair<std::string, std::string>> given;
  const auto add = [&given](const char* flag, const std::string& text) {
    if (!text.empty()) given.emplace_back(flag, text);
  };
  add("--layer", flags.layers);
  add("--head", flags.heads);
  add("--step", flags.steps);
  add("--block", flags.blocks);
  add("--sequence", flags.sequences);
  add("--set-sizes", flags.set_sizes);
  add("--taus", fmt::format("{}", fmt::join(flags.taus, ",")));
  if (flags.count != MetricOptions{}.count) {
    given.emplace_back("--count", std::string(to_string(flags.count)));
  }
  if (flags.sink_factor != MetricOptions{}.sink_factor) {
    add("--sink-factor", fmt::format("{}", flags.sink_factor));
  }
  if (flags.from_summary) given.emplace_back("--from-summary", "1");
  return given;
}

AnalyzeSelection parse_selection(const AnalyzeFlags& flags, const TraceShape& shape) {
  AnalyzeSelection selection;
  if (!flags.layers.empty()) {
    selection.layers = indices_of(flags.layers, "--layer", shape.layers, shape.num_layers);
  }
  if (!flags.heads.empty()) {
    selection.heads = indices_of(flags.heads, "--head", shape.heads, shape.num_heads);
    selection.kv_heads = shape.kv_heads_used_by(*selection.heads);
  }
  if (!flags.steps.empty()) selection.steps = parse_index_set(flags.steps, "--step", 1);
  if (!flags.blocks.empty()) selection.rows.blocks = parse_index_set(flags.blocks, "--block", 0);
  if (!flags.sequences.empty()) {
    selection.rows.sequences = parse_index_set(flags.sequences, "--sequence", 0);
  }
  return selection;
}

MetricOptions metric_options(const AnalyzeFlags& flags) {
  MetricOptions options;
  options.from_summary = flags.from_summary;
  options.sink_factor = flags.sink_factor;
  options.count = flags.count;
  if (!flags.set_sizes.empty())
    options.set_sizes = parse_index_set(flags.set_sizes, "--set-sizes", 1);
  if (!flags.taus.empty()) {
    options.taus.clear();
    for (const std::string& tau : flags.taus) options.taus.push_back(parse_tau(tau));
  }
  return options;
}

}  // namespace blockscope
