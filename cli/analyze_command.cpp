// `blockscope analyze`: the metrics of analysis/ over traces, as tables and as files for figures.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <string>

#include "analysis/metrics/available_metrics.h"
#include "analysis/metrics/own_metrics.h"
#include "analysis/metrics/query_comparison.h"
#include "analysis/pass/damage.h"
#include "analysis/results/result_selection.h"
#include "analysis/results/result_table.h"
#include "cli/analyze_flags.h"
#include "cli/analyze_idle.h"
#include "cli/analyze_matrix.h"
#include "cli/analyze_output.h"
#include "cli/commands.h"
#include "cmake/build_info/build_info.h"
#include "command_line/options.h"
#include "command_line/pass_progress.h"
#include "command_line/printable.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"

namespace blockscope {
namespace {

void print_metrics() {
  fmt::print("{:<18} {:<11} {:<8} {}\n", "metric", "--record", "default", "what");
  for (const MetricInfo& metric : all_metrics()) {
    fmt::print("{:<18} {:<11} {:<8} {}\n", metric.name, metric.level,
               metric.by_default ? "yes" : "no", metric.description);
  }
  for (const OwnMetric& metric : own_metrics()) {
    fmt::print("{:<18} {:<11} {:<8} {}\n", metric.name, metric.level, "yes", metric.description);
  }
}

/// How much of the traces is selected.
struct Extent {
  std::int64_t sequences = 0, blocks = 0, steps = 0;
};

Extent extent_of(const TraceGroup& traces, const RowSelection& rows) {
  Extent extent;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    std::vector<std::int64_t> sequences;
    for (const BlockSteps& block : list_blocks(traces.trace(i), rows)) {
      sequences.push_back(block.sequence);
      extent.blocks += 1;
      extent.steps += static_cast<std::int64_t>(block.steps.size());
    }
    std::ranges::sort(sequences);
    extent.sequences += std::unique(sequences.begin(), sequences.end()) - sequences.begin();
  }
  return extent;
}

/// Throws when there is no denoising step to look at.
Extent require_steps(const TraceGroup& traces, const AnalyzeFlags& flags,
                     const RowSelection& rows) {
  const Extent all = extent_of(traces, {});
  if (all.steps == 0) {
    throw TraceError(fmt::format("{}: nothing to analyse: {} committed, no denoising step",
                                 flags.traces.front(),
                                 plural(traces.trace(0).info().num_rows, "row")));
  }
  const Extent extent = extent_of(traces, rows);
  if (extent.steps > 0) return extent;
  throw UsageError(fmt::format(
      "--sequence, --block: the selection matches nothing. HINT: the traces hold {} with {}; "
      "`blockscope info` shows more",
      plural(all.sequences, "sequence"), plural(all.blocks, "block")));
}

/// Applies --head and --step to the results of the pass. Returns notes about metrics that they
/// could not narrow.
std::vector<std::string> narrow(std::vector<MetricResult>& results,
                                const AnalyzeSelection& selection) {
  std::vector<std::string> notes;
  const auto keep = [&](const char* flag, const std::string& axis,
                        const Indices& wanted) -> SelectionOutcome {
    if (!wanted) return {.matched = true, .there = {}, .whole = {}};
    SelectionOutcome outcome = keep_elements(results, axis, {wanted->begin(), wanted->end()});
    if (!outcome.matched && !outcome.there.empty()) {
      throw UsageError(fmt::format("{}: the selection matches nothing; there are {}", flag,
                                   fmt::join(outcome.there, ",")));
    }
    return outcome;
  };
  const SelectionOutcome steps = keep("--step", "step", selection.steps);
  if (!steps.whole.empty()) {
    notes.push_back(
        fmt::format("over all steps, whatever --step says: {}", fmt::join(steps.whole, ", ")));
  }
  const SelectionOutcome heads = keep("--head", "head", selection.heads);
  const SelectionOutcome kv_heads = keep("--head", "kv_head", selection.kv_heads);
  std::vector<std::string> whole;
  std::ranges::set_intersection(heads.whole, kv_heads.whole, std::back_inserter(whole));
  if (!whole.empty()) {
    notes.push_back(
        fmt::format("over all heads, whatever --head says: {}", fmt::join(whole, ", ")));
  }
  return notes;
}

/// Refuses options that select or show nothing, before a long pass. Metrics over no step at all
/// already have the axes of their results.
void check_axes(const TraceGroup& traces, const std::vector<const MetricInfo*>& infos,
                const MetricOptions& options, const CLI::App& command,
                const std::vector<std::string>& by) {
  std::vector<std::unique_ptr<StepMetric>> metrics;
  for (const MetricInfo* info : infos) metrics.push_back(info->make(options));
  PassOptions nothing;
  nothing.rows.sequences = std::vector<std::int64_t>{};
  const std::vector<MetricResult> results = run_pass(traces, metrics, nothing);
  refuse_idle_axes(command, results);
  if (!by.empty()) metrics_without(results, by);
}

bool names_own(const std::string& name) {
  return std::ranges::find(own_metrics(), name, &OwnMetric::name) != own_metrics().end();
}

class Analysis {
 public:
  Analysis(const CLI::App& command, const AnalyzeFlags& flags)
      : command_(command), flags_(flags), output_(flags) {}

  void run() {
    const TraceGroup traces(flags_.traces);
    begin_document(traces);
    if (!flags_.matrix.empty()) {
      const MatrixRequest request = matrix_request(flags_, traces.shape());
      document_.results.push_back(naming_damage(
          traces.trace(0).info().path, [&] { return similarity_matrix(traces, request); }));
    } else if (!flags_.backbone.empty()) {
      compare(traces);
    } else {
      measure(traces);
    }
    InterruptGuard::check();
    if (!flags_.by.empty()) without_axes_ = metrics_without(document_.results, flags_.by);
    output_.write(document_);  // first: tables that can't be printed must not cost the files
    if (output_.prints_tables()) print();
  }

 private:
  void begin_document(const TraceGroup& traces) {
    document_.program =
        fmt::format("blockscope {} ({})", build_info().version, build_info().git_describe);
    for (std::size_t i = 0; i < traces.size(); ++i) {
      document_.traces.push_back(traces.trace(i).info().path);
    }
    document_.model_digest = traces.shape().model_digest;
    document_.selection = given_selection(flags_);
  }

  PassOptions pass_options(const AnalyzeSelection& selection, PassProgress& progress) const {
    PassOptions options;
    options.rows = selection.rows;
    options.layers = selection.layers;
    options.threads = flags_.threads;
    options.memory_bytes = flags_.memory_mib << 20U;
    options.progress = progress.callback();
    return options;
  }

  std::vector<const MetricInfo*> choose_metrics(const TraceGroup& traces,
                                                const MetricOptions& options) {
    std::vector<const MetricInfo*> metrics;
    for (const std::string& name : flags_.metrics) {
      if (names_own(name)) continue;
      const MetricInfo* metric = &metric_by_name(name);
      if (std::ranges::find(metrics, metric) == metrics.end()) metrics.push_back(metric);
    }
    if (!flags_.metrics.empty()) return metrics;
    MetricChoice choice = available_metrics(traces, options);
    document_.unavailable = std::move(choice.unavailable);
    if (choice.metrics.empty()) {
      throw TraceError(document_.unavailable.empty() ? "no metric is on by default"
                                                     : document_.unavailable.front().reason);
    }
    return choice.metrics;
  }

  void measure(const TraceGroup& traces) {
    const AnalyzeSelection selection = parse_selection(flags_, traces.shape());
    const MetricOptions options = metric_options(flags_);
    for (const std::string& name : flags_.metrics) {
      if (!names_own(name)) metric_by_name(name);
    }
    extent_ = require_steps(traces, flags_, selection.rows);
    const auto infos = choose_metrics(traces, options);
    refuse_idle_metric_options(command_, infos);
    const std::size_t layers =
        selection.layers ? selection.layers->size() : traces.shape().layers.size();
    PassProgress progress(flags_.quiet, check_metrics(traces, infos, options, layers));
    // A plugin's metric takes layers and steps without such axes, and only its results show the
    // others; narrow() tells then what --head did not narrow.
    if (!takes_own()) check_axes(traces, infos, options, command_, flags_.by);
    std::vector<std::unique_ptr<StepMetric>> metrics;
    for (const MetricInfo* info : infos) metrics.push_back(info->make(options));
    if (!metrics.empty()) {
      document_.results = run_pass(traces, metrics, pass_options(selection, progress));
    }
    notes_ = narrow(document_.results, selection);
    measure_own(traces, selection, progress);
    progress.finish();
  }

  bool takes_own() const {
    return flags_.metrics.empty() ? !own_metrics().empty()
                                  : std::ranges::any_of(flags_.metrics, names_own);
  }

  /// The metrics of plugins: those named, or all that the traces allow.
  void measure_own(const TraceGroup& traces, const AnalyzeSelection& selection,
                   PassProgress& progress) {
    std::vector<MetricResult> results;
    for (const OwnMetric& metric : own_metrics()) {
      if (!flags_.metrics.empty() && std::ranges::count(flags_.metrics, metric.name) == 0) continue;
      try {
        results.push_back(
            metric.compute(traces, selection.steps, pass_options(selection, progress)));
      } catch (const TraceError& error) {  // another level, or nothing to compute it from
        if (!flags_.metrics.empty()) throw;
        document_.unavailable.push_back({metric.name, metric.level, error.what()});
      }
    }
    AnalyzeSelection heads = selection;  // each metric itself took the steps
    heads.steps.reset();
    for (std::string& note : narrow(results, heads)) notes_.push_back(std::move(note));
    std::ranges::move(results, std::back_inserter(document_.results));
  }

  void compare(const TraceGroup& traces) {
    const TraceGroup backbone({flags_.backbone});
    const AnalyzeSelection selection = parse_selection(flags_, traces.shape());
    extent_ = require_steps(traces, flags_, selection.rows);
    document_.traces.push_back(backbone.trace(0).info().path);
    document_.selection.emplace_back("--backbone", flags_.backbone);
    PassProgress progress(flags_.quiet, 0);
    document_.results.push_back(compare_query_statistics(traces, backbone, metric_options(flags_),
                                                         pass_options(selection, progress)));
    progress.finish();
    notes_ = narrow(document_.results, selection);
  }

  void print() const {
    fmt::print("{}\n", printable(fmt::format("{}", fmt::join(document_.traces, "\n"))));
    if (extent_.steps > 0) {
      fmt::print("{}, {}, {}\n", plural(extent_.sequences, "sequence"),
                 plural(extent_.blocks, "block"), plural(extent_.steps, "denoising step"));
    }
    TableOptions options;
    options.by = flags_.by;
    options.width = AnalyzeOutput::terminal_width();
    if (!flags_.by.empty()) options.max_rows = std::numeric_limits<std::size_t>::max();
    for (const MetricResult& result : document_.results) {
      if (std::ranges::count(without_axes_, result.metric) > 0) continue;
      fmt::print("\n{}", printable(result_table(result, options)));
    }
    if (!without_axes_.empty()) {
      fmt::print("\nnote: not shown, without the axis {}: {}\n", fmt::join(flags_.by, " and "),
                 fmt::join(without_axes_, ", "));
    }
    for (const std::string& note : notes_) fmt::print("\nnote: {}\n", note);
    if (!document_.unavailable.empty()) fmt::print("\nnot computed:\n");
    for (const UnavailableMetric& metric : document_.unavailable) {
      fmt::print("  {}: {}\n", metric.metric, printable(metric.reason));
    }
    if (!output_.exports()) {
      fmt::print("\n--csv, --json and --hdf5 write every value{}\n",
                 has_heads() ? "; --by head shows heads" : "");
    }
  }

  bool has_heads() const {
    return std::ranges::any_of(document_.results, [](const MetricResult& result) {
      return std::ranges::any_of(result.arrays,
                                 [](const ResultArray& array) { return array.has_axis("head"); });
    });
  }

  const CLI::App& command_;
  const AnalyzeFlags& flags_;
  AnalyzeOutput output_;
  AnalysisDocument document_;
  Extent extent_;
  std::vector<std::string> notes_;
  std::vector<std::string> without_axes_;  // metrics that lack an axis of --by
};

void run_analyze(const CLI::App& command, const AnalyzeFlags& flags) {
  refuse_idle_combinations(command, flags);
  if (flags.list) return print_metrics();
  if (flags.traces.empty()) {
    throw UsageError("analyze: expected at least one trace. HINT: blockscope analyze run.h5");
  }
  if (!flags.matrix.empty() && (!flags.metrics.empty() || !flags.backbone.empty())) {
    throw UsageError("--matrix: can't be combined with --metric or --backbone");
  }
  if (!flags.backbone.empty() && (!flags.metrics.empty() || flags.traces.size() != 1)) {
    throw UsageError("--backbone: takes one trace and no --metric");
  }
  const InterruptGuard guard;  // before the first output: a signal must not leave a partial one
  Analysis(command, flags).run();
}

}  // namespace

void add_analyze_command(CLI::App& app) {
  auto* command = app.add_subcommand("analyze", "Compute the papers' metrics from traces");
  auto flags = std::make_shared<AnalyzeFlags>();
  add_analyze_flags(*command, *flags);
  command->callback([flags, command] { run_analyze(*command, *flags); });
}

}  // namespace blockscope
