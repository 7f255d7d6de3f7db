#include "viewer/model/panel_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "analysis/metrics/union_size.h"
#include "analysis/results/result_table.h"
#include "decode_record/base/error.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {
namespace {

/// The first element along the first axis, which has names instead of numbers.
ResultArray first_of_axis(const ResultArray& array, const std::string& name) {
  if (array.axis(name) != 0) return array;
  ResultArray first = array;
  const std::size_t size = array.values.size() / array.axes[0].size();
  first.axes.erase(first.axes.begin());
  first.values.resize(size);
  if (!first.terms.empty()) first.terms.resize(size);
  return first;
}

/// The array without the axes that `choice` doesn't show: each is fixed to the chosen element. Has
/// no axis if the result lacks the element, because a panel calls this in every frame and must not
/// throw.
ResultArray shown_part(ResultArray array, const PanelMetric& choice) {
  if (array.has_axis("k")) {
    const auto& sizes = array.axes[array.axis("k")].index;
    array = select(array, "k", {*std::ranges::max_element(sizes)});
  }
  if (array.has_axis("tau")) {
    const auto& taus = array.axes[array.axis("tau")].index;
    if (std::ranges::find(taus, choice.view.tau) == taus.end()) return {};
    array = select(array, "tau", {choice.view.tau});
  }
  if (array.has_axis("estimator")) {
    array = first_of_axis(array, "estimator");
  }
  if (choice.view.rows != nullptr) array = part_at(array, "rows", choice.view.rows);
  return array;
}

/// "head", "kv_head", or nothing if a value belongs to a whole layer.
std::vector<std::string> layer_and_head(const ResultArray& array) {
  for (const char* name : {"head", "kv_head"}) {
    if (array.has_axis(name)) return {"layer", name};
  }
  return {"layer"};
}

std::optional<std::size_t> place(const ResultAxis& axis, std::int64_t wanted) {
  const auto found = std::ranges::find(axis.index, static_cast<double>(wanted));
  if (found == axis.index.end()) return std::nullopt;
  return static_cast<std::size_t>(found - axis.index.begin());
}

/// Index of a recorded layer and query head among the cells [layer, head or kv_head] of `means`.
std::optional<std::size_t> cell_of(const ResultArray& means, const TraceMeta& meta,
                                   std::size_t layer, std::size_t head) {
  if (means.axes.empty()) return std::nullopt;
  const auto row = place(means.axes[0], meta.layers[layer]);
  if (!row) return std::nullopt;
  if (!means.has_axis("head") && !means.has_axis("kv_head")) return row;
  const std::int64_t query_head = meta.heads[head];
  const auto column =
      place(means.axes[1],
            means.has_axis("head") ? query_head : meta.kv_head_of(meta.layers[layer], query_head));
  if (!column) return std::nullopt;
  return *row * means.axes[1].size() + *column;
}

/// The values at `first`, `first + stride`, ... without the NaNs.
HeadCurve curve_from(const ResultArray& means, const std::vector<double>& steps, std::size_t first,
                     std::size_t stride) {
  HeadCurve curve;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::size_t at = first + i * stride;
    if (std::isnan(means.values[at])) continue;
    curve.steps.push_back(steps[i]);
    curve.values.push_back(means.values[at]);
    if (!means.terms.empty()) curve.terms += means.terms[at];
  }
  return curve;
}

std::string with_unit(const PanelMetric& choice) {
  return fmt::format("{} [{}]", choice.view.label, choice.view.unit);
}

std::vector<PanelMetric> make_panel_metrics() {
  std::vector<PanelMetric> all;
  for (const MetricInfo& metric : all_metrics()) {
    for (const MetricView& view : metric.views) {
      std::string name = view.array;
      if (view.rows != nullptr && view.rows != std::string_view("all")) {
        name += std::string("_") + view.rows;
      }
      all.push_back({metric.name, view.level == nullptr ? metric.level : view.level, view, name});
    }
  }
  return all;
}

std::vector<PanelMetric>& all_panel_metrics() {
  static std::vector<PanelMetric> all = make_panel_metrics();
  return all;
}

/// Results of files, and the words of their views, which stay where they are.
struct FileResults {
  std::deque<MetricResult> results;
  std::deque<std::string> words;
};
FileResults& file_results() {
  static FileResults all;
  return all;
}

}  // namespace

const std::vector<PanelMetric>& panel_metrics() { return all_panel_metrics(); }

void add_panel_metrics(std::vector<MetricResult> results, const std::string& file) {
  FileResults& kept = file_results();
  const auto word = [&](std::string text) {
    return kept.words.emplace_back(std::move(text)).c_str();
  };
  const std::size_t before = panel_metrics().size();
  for (MetricResult& result : results) {
    if (std::ranges::find(all_metrics(), result.metric, &MetricInfo::name) != all_metrics().end()) {
      throw Error(
          fmt::format("{}: {}: a built-in metric has this name. HINT: the panels compute it "
                      "themselves; leave it out of the file",
                      file, result.metric));
    }
    for (const ResultArray& array : result.arrays) {
      if (!array.has_axis("layer")) continue;
      for (const ResultAxis& axis : array.axes) {
        const bool numbers = axis.labels.empty() && std::ranges::all_of(axis.index, [](double at) {
                               return std::isfinite(at);
                             });
        if (is_place(axis.name) && !numbers) {
          throw Error(fmt::format("{}: {}: axis {}: expected numbers, got other labels", file,
                                  array.name, axis.name));
        }
      }
      if (std::ranges::find(panel_metrics(), array.name, &PanelMetric::name) !=
          panel_metrics().end()) {
        throw Error(fmt::format(
            "{}: {}: the panels show an array of this name already. HINT: give it another name",
            file, array.name));
      }
      std::string label = array.name;
      std::ranges::replace(label, '_', ' ');
      const std::string unit = array.unit == "1" ? "value" : array.unit;  // names an axis
      MetricView view{word(label + " (file)"), word(array.name), word(unit)};
      view.level = "trajectory";
      all_panel_metrics().push_back({result.metric, view.level, view, array.name});
    }
    kept.results.push_back(std::move(result));
  }
  if (panel_metrics().size() == before) {
    throw Error(fmt::format(
        "{}: expected an array with an axis layer, got none. HINT: Heads and Curves show values by "
        "layer and head",
        file));
  }
}

const MetricResult* result_of_file(const std::string& metric) {
  const auto found = std::ranges::find(file_results().results, metric, &MetricResult::metric);
  return found == file_results().results.end() ? nullptr : &*found;
}

std::size_t panel_metric(std::string_view name) {
  const std::vector<PanelMetric>& all = panel_metrics();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return i;
  }
  throw std::out_of_range(fmt::format("no panel shows {}", name));
}

std::optional<std::string> lacks(const TraceMeta& meta, const PanelMetric& choice) {
  if (meta.level < parse_record_level(choice.level)) {
    return fmt::format("This trace has level '{}'. {} needs a trace captured with --record {}.",
                       to_string(meta.level), choice.view.label, choice.level);
  }
  if (result_of_file(choice.metric) != nullptr) return std::nullopt;
  const bool sparse = choice.metric == "selection";
  if (sparse && (meta.selected_size == 0 || !meta.has_shadow)) {
    return fmt::format(
        "This trace lacks a sparse policy's sets or the exact ones. {} needs a trace captured with "
        "a sparse policy and --shadow, such as --policy mage,k=512 --shadow.",
        choice.view.label);
  }
  const std::optional<Field> only_with = metric_by_name(choice.metric).only_with;
  if (!sparse && only_with && !exists_in(spec_of(*only_with), meta)) {
    return fmt::format(
        "This trace has no {}. {} needs a trace of this version, captured with --record {}.",
        spec_of(*only_with).path, choice.view.label, choice.level);
  }
  return std::nullopt;
}

ResultArray means_by_head(const MetricResult& result, const PanelMetric& choice) {
  const ResultArray* array =
      result.find(choice.view.by_head != nullptr ? choice.view.by_head : choice.view.array);
  if (array == nullptr) return {};
  const ResultArray shown = shown_part(*array, choice);
  return shown.axes.empty() ? ResultArray{} : mean_over_others(shown, layer_and_head(shown));
}

ResultArray means_by_step(const MetricResult& result, const PanelMetric& choice) {
  const ResultArray* array = result.find(choice.view.array);
  if (array == nullptr || !array->has_axis("step")) return {};
  const ResultArray shown = shown_part(*array, choice);
  if (shown.axes.empty()) return {};
  std::vector<std::string> keep = layer_and_head(shown);
  keep.emplace_back("step");
  return mean_over_others(shown, keep);
}

SimilarityMatrix head_grid(const ResultArray& means, const TraceMeta& meta) {
  SimilarityMatrix grid{meta.layers.size(), meta.heads.size(), {}};
  grid.values.assign(grid.rows * grid.columns, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t layer = 0; layer < grid.rows; ++layer) {
    for (std::size_t head = 0; head < grid.columns; ++head) {
      const auto cell = cell_of(means, meta, layer, head);
      if (!cell) continue;
      grid.values[layer * grid.columns + head] = static_cast<float>(means.values.at(*cell));
    }
  }
  return grid;
}

SimilarityMatrix head_grid(const MetricResult& result, const PanelMetric& choice,
                           const TraceMeta& meta) {
  return head_grid(means_by_head(result, choice), meta);
}

HeadCurve head_curve(const ResultArray& means_by_step, const TraceMeta& meta, std::size_t layer,
                     std::size_t head) {
  const auto cell = cell_of(means_by_step, meta, layer, head);
  if (!cell) return {};
  const std::vector<double>& steps = means_by_step.axes.back().index;
  return curve_from(means_by_step, steps, *cell * steps.size(), 1);
}

HeadCurves head_curves(const ResultArray& means_by_step, const TraceMeta& meta) {
  HeadCurves all;
  all.heads = meta.heads.size();
  for (std::size_t layer = 0; layer < meta.layers.size(); ++layer) {
    for (std::size_t head = 0; head < all.heads; ++head) {
      all.curves.push_back(head_curve(means_by_step, meta, layer, head));
    }
  }
  return all;
}

std::vector<SizeCurve> recall_by_size(const MetricResult& result, const TraceMeta& meta,
                                      const std::optional<HeadSlot>& head) {
  const ResultArray* array = result.find("recall");
  if (array == nullptr) return {};
  const ResultArray means = head ? mean_over_others(*array, {"layer", "kv_head", "step", "k"})
                                 : mean_over_others(*array, {"step", "k"});
  const std::vector<double>& steps = means.axes[means.axis("step")].index;
  const std::vector<double>& sizes = means.axes[means.axis("k")].index;
  std::size_t first = 0;
  if (head) {
    const auto cell = cell_of(means, meta, head->layer, head->head);
    if (!cell) return {};
    first = *cell * steps.size() * sizes.size();
  }
  std::vector<SizeCurve> curves;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    curves.push_back(
        {static_cast<std::int64_t>(sizes[i]), curve_from(means, steps, first + i, sizes.size())});
  }
  return curves;
}

UnionDistribution union_distribution(const MetricResult& result,
                                     const std::optional<std::size_t>& layer) {
  UnionDistribution out;
  const ResultArray* array = result.find("union_histogram");
  if (array == nullptr) return out;
  const std::size_t layers = array->axes[0].size();
  const std::size_t bins = array->axes[2].size();
  out.width = kUnionBinWidth;
  out.all.assign(bins, 0.0);
  out.first.assign(bins, 0.0);
  for (std::size_t bin = 0; bin < bins; ++bin) {
    out.centres.push_back(array->axes[2].index[bin] + kUnionBinWidth / 2);
    for (std::size_t l = layer.value_or(0); l < (layer ? *layer + 1 : layers); ++l) {
      out.all[bin] += array->at({l, 0, bin});
      out.first[bin] += array->at({l, 1, bin});
    }
    out.terms += out.all[bin];
    out.first_terms += out.first[bin];
  }
  for (double& count : out.all) count /= std::max(out.terms, 1.0);
  for (double& count : out.first) count /= std::max(out.first_terms, 1.0);
  return out;
}

CsvTable heads_table(const MatrixPayload& grid, const PanelMetric& choice, const TraceMeta& meta) {
  CsvTable table({"layer", "head", with_unit(choice)});
  for (std::size_t row = 0; row < grid.matrix.rows; ++row) {
    for (std::size_t column = 0; column < grid.matrix.columns; ++column) {
      table.add({meta.layers[row], meta.heads[column],
                 double{grid.matrix.values[row * grid.matrix.columns + column]}});
    }
  }
  return table;
}

CsvTable curves_table(const ResultArray& means, const PanelMetric& choice, const TraceMeta& meta,
                      std::size_t layer) {
  CsvTable table({"layer", "head", "step", with_unit(choice)});
  for (std::size_t head = 0; head < meta.heads.size(); ++head) {
    const HeadCurve curve = head_curve(means, meta, layer, head);
    for (std::size_t i = 0; i < curve.steps.size(); ++i) {
      table.add({meta.layers[layer], meta.heads[head], static_cast<std::int64_t>(curve.steps[i]),
                 curve.values[i]});
    }
  }
  return table;
}

CsvTable sides_table(const SimilarityMatrix& external, const SimilarityMatrix& internal,
                     const TraceMeta& meta) {
  CsvTable table({"layer", "head", "A_out [cosine]", "A_in [cosine]"});
  for (std::size_t i = 0; i < external.values.size(); ++i) {
    table.add({meta.layers[i / external.columns], meta.heads[i % external.columns],
               double{external.values[i]}, double{internal.values[i]}});
  }
  return table;
}

CsvTable recall_table(const std::vector<SizeCurve>& curves) {
  CsvTable table({"k", "step", "recall of step 1's set [share]"});
  for (const SizeCurve& line : curves) {
    for (std::size_t i = 0; i < line.curve.steps.size(); ++i) {
      table.add({line.size, static_cast<std::int64_t>(line.curve.steps[i]), line.curve.values[i]});
    }
  }
  return table;
}

CsvTable unions_table(const UnionDistribution& unions) {
  CsvTable table({"|union| / k", "all steps [share]", "first steps [share]"});
  for (std::size_t i = 0; i < unions.centres.size(); ++i) {
    table.add({unions.centres[i], unions.all[i], unions.first[i]});
  }
  return table;
}

}  // namespace blockscope
