#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "analysis/figures/figures.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {
namespace {

using Draw = std::function<std::vector<ReportFigure>(const MetricResult&)>;

/// All drawings that these functions make of a result.
template <typename... Functions>
Draw drawings(Functions... functions) {
  return [=](const MetricResult& result) {
    std::vector<ReportFigure> figures;
    const auto add = [&](std::optional<ReportFigure> figure) {
      if (figure) figures.push_back(std::move(*figure));
    };
    (add(functions(result)), ...);
    return figures;
  };
}

std::vector<ReportFigure> similarity_figures(const MetricResult& result) {
  std::vector<ReportFigure> figures = head_similarity(result);
  if (auto figure = similarity_over_steps(result)) figures.push_back(std::move(*figure));
  return figures;
}

const std::map<std::string, Draw>& figure_table() {
  static const std::map<std::string, Draw> table{
      {"similarity", similarity_figures},
      {"external_mass", drawings(external_mass_map)},
      {"reuse_error", drawings(reuse_error_by_layer)},
      {"kept_pair", drawings([](const MetricResult& result) { return kept_by_age(result); })},
      {"recall", drawings(recall_over_steps)},
      {"union_size", drawings(union_sizes)},
      {"entropy", drawings(entropy_map)},
      {"distance", drawings(attention_by_distance, attention_in_block)},
      {"regions", drawings(regions_over_steps)},
      {"lens", drawings(lens_map)},
      {"sinks", drawings(sinks_over_steps)},
      {"est_acc", drawings(estimation_accuracy)},
      {"selection", drawings(selection_over_steps)},
      {"cache", drawings(cache_rows_map, cache_rows_over_steps, cache_staleness)},
      {"router", drawings(router_usage_map, router_agreement)},
      {"draft", drawings(draft_lengths, draft_positions, draft_reasons, draft_speedup)},
      {"settling", drawings(settled_by_share)},
      {"decoding", drawings(decoding_over_steps, settled_map)},
  };
  return table;
}

}  // namespace

std::vector<Figure> figures_of(const MetricResult& result) {
  std::vector<Figure> figures;
  const auto found = figure_table().find(result.metric);
  if (found == figure_table().end()) {
    if (std::ranges::find(all_metrics(), result.metric, &MetricInfo::name) != all_metrics().end()) {
      return figures;  // shown as a table
    }
    for (ReportFigure& own : own_figures(result)) figures.push_back(std::move(own.figure));
    return figures;
  }
  for (ReportFigure& figure : found->second(result)) figures.push_back(std::move(figure.figure));
  return figures;
}

}  // namespace blockscope
