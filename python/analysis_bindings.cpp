// analyze(), compare_backbone() and matrix(): the passes of analysis/ with the options of
// `blockscope analyze`, its --backbone and its --matrix.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <ostream>
#include <set>

#include "analysis/metrics/available_metrics.h"
#include "analysis/metrics/query_comparison.h"
#include "analysis/metrics/similarity_matrix.h"
#include "analysis/metrics/teacher_comparison.h"
#include "analysis/pass/damage.h"
#include "analysis/results/export_csv.h"
#include "analysis/results/export_hdf5.h"
#include "analysis/results/export_json.h"
#include "analysis/results/result_selection.h"
#include "analysis/results/result_table.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/files/command_files.h"
#include "python/bindings.h"
#include "python/drawing.h"

namespace blockscope::python {
namespace {

using Indices = std::optional<std::vector<std::int64_t>>;

struct AnalyzeRequest {
  std::vector<std::string> traces;
  std::vector<std::string> metrics;  ///< empty: all default metrics that the traces can give
  Indices layers, heads, steps, blocks, sequences;
  std::vector<std::string> by;
  MetricOptions metric_options;
  std::size_t threads = 0;
  std::size_t memory_mib = 256;
};

struct AnalyzeAnswer {
  std::vector<std::string> traces;
  std::string model_digest;
  std::vector<MetricResult> results;
  std::vector<UnavailableMetric> unavailable;
};

/// Returns the wanted indices, ascending and distinct. Each must be in `there`.
void check_indices(const char* name, const Indices& wanted,
                   const std::vector<std::int64_t>& there) {
  if (!wanted) return;
  if (wanted->empty()) throw UsageError(fmt::format("{}: expected at least one", name));
  for (const std::int64_t index : *wanted) {
    if (std::ranges::find(there, index) != there.end()) continue;
    throw UsageError(fmt::format("{}: {} was not recorded. HINT: the trace has {}", name, index,
                                 fmt::join(there, ",")));
  }
}

void require_steps(const TraceGroup& traces, const RowSelection& rows) {
  const auto any = [&](const RowSelection& selection) {
    for (std::size_t i = 0; i < traces.size(); ++i) {
      for (const BlockSteps& block : list_blocks(traces.trace(i), selection)) {
        if (!block.steps.empty()) return true;
      }
    }
    return false;
  };
  if (any(rows)) return;
  const TraceInfo& first = traces.trace(0).info();
  if (any({})) {
    throw UsageError(
        fmt::format("sequences, blocks: the selection matches nothing. HINT: {} has {}", first.path,
                    plural(first.num_sequences, "sequence")));
  }
  throw TraceError(fmt::format("{}: nothing to analyse: {} committed, no denoising step",
                               first.path, plural(first.num_rows, "row")));
}

/// The KV heads that query heads use.
Indices kv_heads_of(const Indices& heads, const TraceShape& shape) {
  if (!heads) return std::nullopt;
  return shape.kv_heads_used_by(*heads);
}

bool any_has(const std::vector<MetricResult>& results, const std::string& axis) {
  return std::ranges::any_of(results, [&](const MetricResult& result) {
    return std::ranges::any_of(result.arrays,
                               [&](const ResultArray& array) { return array.has_axis(axis); });
  });
}

void refuse_idle(const char* name, const Indices& given, bool has_axis) {
  if (!given || has_axis) return;
  throw UsageError(
      fmt::format("{}: these metrics have no such axis, so it would do nothing", name));
}

void keep(const char* name, const std::string& axis, const Indices& wanted,
          std::vector<MetricResult>& results) {
  if (!wanted) return;
  const SelectionOutcome outcome = keep_elements(results, axis, {wanted->begin(), wanted->end()});
  if (outcome.matched || outcome.there.empty()) return;
  throw UsageError(fmt::format("{}: the selection matches nothing; there are {}", name,
                               fmt::join(outcome.there, ",")));
}

/// Means over all places except those of `by`, weighted by terms. Arrays without these axes are
/// dropped.
void reduce(std::vector<MetricResult>& results, const std::vector<std::string>& by) {
  if (by.empty()) return;
  for (MetricResult& result : results) {
    std::erase_if(result.arrays, [&](const ResultArray& array) {
      return !std::ranges::all_of(by, [&](const auto& axis) { return array.has_axis(axis); });
    });
    for (ResultArray& array : result.arrays) {
      if (array.terms.empty()) continue;  // counts have no mean
      std::vector<std::string> kept = by;
      for (const ResultAxis& axis : array.axes) {
        const bool named = std::ranges::find(by, axis.name) != by.end();
        if (!named && !is_place(axis.name)) kept.push_back(axis.name);
      }
      array = mean_over_others(array, kept);
    }
  }
}

std::vector<const MetricInfo*> choose(const TraceGroup& traces, const AnalyzeRequest& request,
                                      AnalyzeAnswer& answer) {
  std::vector<const MetricInfo*> metrics;
  for (const std::string& name : request.metrics) {
    const MetricInfo* metric = &metric_by_name(name);
    if (std::ranges::find(metrics, metric) == metrics.end()) metrics.push_back(metric);
  }
  if (metrics.empty()) {
    MetricChoice choice = available_metrics(traces, request.metric_options);
    answer.unavailable = std::move(choice.unavailable);
    metrics = std::move(choice.metrics);
    if (metrics.empty()) {
      throw TraceError(answer.unavailable.empty() ? "no metric is on by default"
                                                  : answer.unavailable.front().reason);
    }
  }
  check_metrics(traces, metrics, request.metric_options, traces.shape().layers.size());
  return metrics;
}

std::vector<MetricResult> measure(const TraceGroup& traces,
                                  const std::vector<const MetricInfo*>& infos,
                                  const AnalyzeRequest& request, const PassOptions& options) {
  std::vector<std::unique_ptr<StepMetric>> metrics;
  for (const MetricInfo* info : infos) metrics.push_back(info->make(request.metric_options));
  return run_pass(traces, metrics, options);
}

/// Adds the facts about the traces that every answer has.
AnalyzeAnswer answer_about(const TraceGroup& traces) {
  AnalyzeAnswer answer;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    answer.traces.push_back(traces.trace(i).info().path);
  }
  answer.model_digest = traces.shape().model_digest;
  return answer;
}

/// The options of a pass, checked against the contents of the traces.
PassOptions pass_options(const TraceGroup& traces, const AnalyzeRequest& request) {
  check_indices("layers", request.layers, traces.shape().layers);
  check_indices("heads", request.heads, traces.shape().heads);
  PassOptions options;
  options.rows = {request.sequences, request.blocks};
  options.layers = request.layers;
  options.threads = request.threads;
  options.memory_bytes = request.memory_mib << 20U;
  require_steps(traces, options.rows);
  return options;
}

/// Selects the steps and heads in the results of a pass.
void narrow(const AnalyzeRequest& request, const TraceShape& shape,
            std::vector<MetricResult>& results) {
  keep("steps", "step", request.steps, results);
  keep("heads", "head", request.heads, results);
  keep("heads", "kv_head", kv_heads_of(request.heads, shape), results);
}

AnalyzeAnswer analyze(const AnalyzeRequest& request, PythonProgress& progress) {
  for (const std::string& name : request.metrics) metric_by_name(name);  // before a file is opened
  close_unfinished();
  const TraceGroup traces(request.traces);
  PassOptions options = pass_options(traces, request);
  AnalyzeAnswer answer = answer_about(traces);
  const auto infos = choose(traces, request, answer);
  // Results over no step already have their axes, so mistakes are reported before a long pass.
  PassOptions nothing;
  nothing.rows.sequences = std::vector<std::int64_t>{};
  const std::vector<MetricResult> empty = measure(traces, infos, request, nothing);
  refuse_idle("layers", request.layers, any_has(empty, "layer"));
  refuse_idle("heads", request.heads, any_has(empty, "head") || any_has(empty, "kv_head"));
  refuse_idle("steps", request.steps, any_has(empty, "step"));
  if (!request.by.empty()) metrics_without(empty, request.by);
  options.progress = progress.callback();
  answer.results = measure(traces, infos, request, options);
  narrow(request, traces.shape(), answer.results);
  reduce(answer.results, request.by);
  return answer;
}

AnalyzeAnswer compare(const AnalyzeRequest& request, const std::string& backbone_path,
                      PythonProgress& progress) {
  close_unfinished();
  const TraceGroup traces(request.traces);
  const TraceGroup backbone({backbone_path});
  PassOptions options = pass_options(traces, request);
  options.progress = progress.callback();
  AnalyzeAnswer answer = answer_about(traces);
  answer.traces.push_back(backbone.trace(0).info().path);
  answer.results.push_back(
      compare_query_statistics(traces, backbone, request.metric_options, options));
  narrow(request, traces.shape(), answer.results);
  return answer;
}

std::string teacher(const std::string& a, const std::string& b, std::optional<double> tolerance,
                    PythonProgress& progress) {
  close_unfinished();
  TeacherOptions options;
  options.tolerance = tolerance;
  options.progress = progress.callback();
  return teacher_json(compare_teacher(a, b, options));
}

AnalyzeAnswer matrix(const std::string& path, const MatrixRequest& request) {
  close_unfinished();
  const TraceGroup traces({path});
  AnalyzeAnswer answer = answer_about(traces);
  answer.results.push_back(
      naming_damage(answer.traces.front(), [&] { return similarity_matrix(traces, request); }));
  return answer;
}

// --- to Python
// ------------------------------------------------------------------------------------

nb::dict axis_dict(const ResultAxis& axis) {
  nb::dict item;
  item["name"] = axis.name;
  item["index"] = axis.index;
  item["labels"] = axis.labels;
  return item;
}

nb::dict array_dict(const ResultArray& array) {
  nb::dict item;
  item["name"] = array.name;
  item["unit"] = array.unit;
  item["description"] = array.description;
  nb::list axes;
  for (const ResultAxis& axis : array.axes) axes.append(axis_dict(axis));
  item["axes"] = axes;
  item["values"] = to_bytearray(array.values);
  item["terms"] = array.terms.empty() ? nb::none() : nb::object(to_bytearray(array.terms));
  return item;
}

nb::dict result_dict(const MetricResult& result) {
  nb::dict item;
  item["metric"] = result.metric;
  item["title"] = result.title;
  item["formula"] = result.formula;
  item["source"] = result.source;
  item["computed_from"] = result.computed_from;
  nb::dict left_out;
  for (const auto& [reason, count] : result.left_out) left_out[reason.c_str()] = count;
  item["left_out"] = left_out;
  nb::list arrays;
  for (const ResultArray& array : result.arrays) arrays.append(array_dict(array));
  item["arrays"] = arrays;
  return item;
}

nb::dict answer_dict(const AnalyzeAnswer& answer) {
  nb::dict result;
  nb::list paths;
  for (const std::string& path : answer.traces) paths.append(to_bytes(path));
  result["traces"] = paths;
  result["model_digest"] = to_bytes(answer.model_digest);
  nb::list results;
  for (const MetricResult& metric : answer.results) results.append(result_dict(metric));
  result["results"] = results;
  nb::dict unavailable;
  for (const UnavailableMetric& metric : answer.unavailable) {
    unavailable[metric.metric.c_str()] = to_bytes(metric.reason);
  }
  result["unavailable"] = unavailable;
  return result;
}

nb::dict analyze_bound(const std::vector<nb::bytes>& traces,
                       const std::vector<std::string>& metrics, Indices layers, Indices heads,
                       Indices steps, Indices blocks, Indices sequences,
                       const std::vector<std::string>& by, const std::vector<double>& taus,
                       const std::string& count, const std::vector<std::int64_t>& set_sizes,
                       double sink_factor, bool from_summary, std::size_t threads,
                       std::size_t memory_mib, nb::object progress) {
  AnalyzeRequest request;
  request.traces = to_strings(traces);
  request.metrics = metrics;
  request.layers = std::move(layers);
  request.heads = std::move(heads);
  request.steps = std::move(steps);
  request.blocks = std::move(blocks);
  request.sequences = std::move(sequences);
  request.by = by;
  if (!taus.empty()) request.metric_options.taus = taus;
  request.metric_options.count = parse_reuse_count("count", count);
  request.metric_options.set_sizes = set_sizes;
  request.metric_options.sink_factor = sink_factor;
  request.metric_options.from_summary = from_summary;
  request.threads = threads;
  request.memory_mib = memory_mib;
  PythonProgress shown(std::move(progress));
  return answer_dict(run_shown(shown, [&] { return analyze(request, shown); }));
}

/// The JSON of `blockscope diff --teacher --json`.
nb::bytes compare_teacher_bound(const nb::bytes& a, const nb::bytes& b,
                                std::optional<double> tolerance, nb::object progress) {
  PythonProgress shown(std::move(progress));
  return to_bytes(run_shown(shown, [&, first = to_string(a), second = to_string(b)] {
    return teacher(first, second, tolerance, shown);
  }));
}

nb::dict compare_backbone_bound(const nb::bytes& trace, const nb::bytes& backbone, Indices layers,
                                Indices heads, Indices steps, Indices blocks, Indices sequences,
                                bool from_summary, std::size_t threads, std::size_t memory_mib,
                                nb::object progress) {
  AnalyzeRequest request;
  request.traces = {to_string(trace)};
  request.layers = std::move(layers);
  request.heads = std::move(heads);
  request.steps = std::move(steps);
  request.blocks = std::move(blocks);
  request.sequences = std::move(sequences);
  request.metric_options.from_summary = from_summary;
  request.threads = threads;
  request.memory_mib = memory_mib;
  PythonProgress shown(std::move(progress));
  return answer_dict(
      run_shown(shown, [&, path = to_string(backbone)] { return compare(request, path, shown); }));
}

nb::dict matrix_bound(const nb::bytes& trace, const std::string& kind, const std::string& field,
                      std::optional<std::int64_t> layer, std::optional<std::int64_t> head,
                      const std::vector<std::int64_t>& steps, const std::vector<std::int64_t>& rows,
                      Indices blocks, Indices sequences) {
  MatrixRequest request;
  request.kind = matrix_kind(kind);
  request.field = field;
  request.layer = layer;
  request.head = head;
  request.rows = {std::move(sequences), std::move(blocks)};
  request.steps = steps;
  if (rows.size() == 2) request.row_pair.emplace(rows[0], rows[1]);
  request.words = {
      "matrix", "layer", "head", "steps", "rows", "rows", "sequences, blocks and steps"};
  PythonProgress signals{nb::none()};
  return answer_dict(
      run_shown(signals, [&, path = to_string(trace)] { return matrix(path, request); }));
}

/// Writes results in the form that the ending of `path` names: .csv, .json, or .h5 and .hdf5.
void write_results(const nb::bytes& path, bool force, const std::vector<nb::dict>& results,
                   const nb::bytes& program, const std::vector<nb::bytes>& traces,
                   const nb::bytes& model_digest) {
  AnalysisDocument document{
      to_string(program), to_strings(traces), to_string(model_digest), {}, {}, {}};
  for (const nb::dict& one : results) document.results.push_back(to_result(one));
  const std::string name = to_string(path);
  without_gil([&] {
    CommandFiles files;
    for (const std::string& trace : document.traces) files.reads_trace(trace);
    const std::string ending = std::filesystem::path(name).extension();
    const bool hdf5 = ending == ".h5" || ending == ".hdf5";
    if (!hdf5 && ending != ".csv" && ending != ".json") {
      throw UsageError(
          fmt::format("{}: expected a name that ends in .csv, .json, .h5 or .hdf5", name));
    }
    OutputFile output = files.open(name, force);
    if (hdf5) write_hdf5(document, output);
    if (ending == ".csv") output.write([&](std::ostream& out) { write_csv(document, out); });
    if (ending == ".json") output.write([&](std::ostream& out) { write_json(document, out); });
    output.commit();
  });
}

nb::list metrics_bound() {
  nb::list result;
  for (const MetricInfo& metric : all_metrics()) {
    nb::dict item;
    item["name"] = metric.name;
    item["level"] = metric.level;
    item["default"] = metric.by_default;
    item["description"] = metric.description;
    result.append(item);
  }
  return result;
}

}  // namespace

void bind_analysis(nb::module_& module) {
  module.def("write_results", &write_results);
  module.def("metrics", &metrics_bound);
  module.def("analyze", &analyze_bound, nb::arg("traces"), nb::arg("metrics"),
             nb::arg("layers").none(), nb::arg("heads").none(), nb::arg("steps").none(),
             nb::arg("blocks").none(), nb::arg("sequences").none(), nb::arg("by"), nb::arg("taus"),
             nb::arg("count"), nb::arg("set_sizes"), nb::arg("sink_factor"),
             nb::arg("from_summary"), nb::arg("threads"), nb::arg("memory_mib"),
             nb::arg("progress").none());
  module.def("compare_teacher", &compare_teacher_bound, nb::arg("a"), nb::arg("b"),
             nb::arg("tolerance").none(), nb::arg("progress").none());
  module.def("compare_backbone", &compare_backbone_bound, nb::arg("trace"), nb::arg("backbone"),
             nb::arg("layers").none(), nb::arg("heads").none(), nb::arg("steps").none(),
             nb::arg("blocks").none(), nb::arg("sequences").none(), nb::arg("from_summary"),
             nb::arg("threads"), nb::arg("memory_mib"), nb::arg("progress").none());
  module.def("matrix", &matrix_bound, nb::arg("trace"), nb::arg("kind"), nb::arg("field"),
             nb::arg("layer").none(), nb::arg("head").none(), nb::arg("steps"), nb::arg("rows"),
             nb::arg("blocks").none(), nb::arg("sequences").none());
}

}  // namespace blockscope::python
