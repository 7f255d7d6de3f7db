#include "analysis/report/explore_curves.h"

#include <fmt/format.h>

#include <array>

#include "analysis/figures/palette.h"
#include "analysis/report/explore_values.h"

namespace blockscope {
namespace {

using nlohmann::json;

/// Means of an array by layer, head and `x`, in rows: each layer's heads and their mean, then the
/// means over layers.
json values_by_head(const ResultArray& array, const std::string& head, const std::string& x) {
  const ResultArray each = mean_over_others(array, {"layer", head, x});
  const ResultArray layers = mean_over_others(array, {"layer", x});
  const ResultArray heads = mean_over_others(array, {head, x});
  const ResultArray all = mean_over_others(array, {x});
  const std::size_t length = all.values.size();
  std::vector<double> cells;
  const auto take = [&](const ResultArray& of, std::size_t row) {
    const auto begin = of.values.begin() + static_cast<std::ptrdiff_t>(row * length);
    cells.insert(cells.end(), begin, begin + static_cast<std::ptrdiff_t>(length));
  };
  const std::size_t num_heads = each.axes[1].size();
  for (std::size_t layer = 0; layer < each.axes[0].size(); ++layer) {
    for (std::size_t i = 0; i < num_heads; ++i) take(each, layer * num_heads + i);
    take(layers, layer);
  }
  for (std::size_t i = 0; i < num_heads; ++i) take(heads, i);
  take(all, 0);
  return coded(cells);
}

/// A figure whose curves are means over layers and heads.
struct HeadCurves {
  const char* metric;
  const char* figure;
  std::vector<std::pair<const char*, const char*>> arrays;  // and the names of their curves
  const char* head = "head";                                // or "kv_head"
  const char* x = "step";
  const char* x_label = "denoising step t";
  const char* y_label = "share of the weight";
};

const std::vector<HeadCurves>& head_curves() {
  static const std::vector<HeadCurves> list{
      {.metric = "similarity",
       .figure = "similarity-over-steps",
       .arrays = {{"similarity_external", "A_out"}, {"similarity_internal", "A_in"}},
       .x_label = "step s of the pair s, s+1",
       .y_label = "mean cosine"},
      {.metric = "distance",
       .figure = "distance",
       .arrays = {{"by_distance", ""}},
       .x = "distance",
       .x_label = "distance of the key in positions (-: before the block)"},
      {.metric = "distance",
       .figure = "offset",
       .arrays = {{"by_offset", ""}},
       .x = "offset",
       .x_label = "position of the key minus that of the query"},
      {.metric = "sinks",
       .figure = "sinks",
       .arrays = {{"kept", "still a sink"}, {"sink_mass", "mass on sinks"}},
       .head = "kv_head",
       .y_label = "share"},
      {.metric = "recall",
       .figure = "recall",
       .arrays = {{"recall", "k = "}},
       .head = "kv_head",
       .y_label = "recall r(t)"}};
  return list;
}

/// The arrays of a figure's curves: one for each k of recall.
std::vector<std::pair<std::string, ResultArray>> arrays_of(const MetricResult& result,
                                                           const HeadCurves& figure) {
  std::vector<std::pair<std::string, ResultArray>> arrays;
  for (const auto& [name, title] : figure.arrays) {
    const ResultArray& array = result.array(name);
    if (!array.has_axis("k")) {
      arrays.emplace_back(title, array);
      continue;
    }
    const ResultAxis& sizes = array.axes[array.axis("k")];
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      arrays.emplace_back(title + sizes.label(i), select(array, "k", {sizes.index[i]}));
    }
  }
  return arrays;
}

}  // namespace

json curves_by_head(const ReportMetrics& metrics, std::size_t limit,
                    std::vector<std::string>& too_large) {
  json curves = json::object();
  std::size_t used = 0;
  for (const HeadCurves& figure : head_curves()) {
    const MetricResult* result = metrics.find(figure.metric);
    if (result == nullptr) continue;
    const auto arrays = arrays_of(*result, figure);
    std::size_t size = 0;
    for (const auto& [title, array] : arrays) size += array.values.size();
    if (used + size > limit) {
      too_large.emplace_back(figure.figure);
      continue;
    }
    used += size;
    json one{{"x", figure.x_label}, {"y", figure.y_label}};
    one["kv"] = std::string_view(figure.head) == "kv_head";
    one["even"] = std::string_view(figure.x) == "distance";  // powers of two
    one["places"] = arrays.front().second.axes[arrays.front().second.axis(figure.x)].index;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      one["names"].push_back(arrays[i].first);
      one["colors"].push_back(line_look(i).color);
      one["values"].push_back(values_by_head(arrays[i].second, figure.head, figure.x));
    }
    curves[figure.figure] = std::move(one);
  }
  return curves;
}

}  // namespace blockscope
