#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "analysis/figures/figures.h"
#include "analysis/figures/head_map.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/palette.h"
#include "analysis/figures/terms.h"
#include "analysis/metrics/heads.h"

namespace blockscope {
namespace {

constexpr std::size_t kShownLayers = 5;
constexpr std::size_t kShownHeads = 12;

/// At most kShownLayers of the layers, from the first to the last.
std::vector<std::size_t> shown_layers(std::size_t layers) {
  std::vector<std::size_t> shown;
  const std::size_t count = std::min(layers, kShownLayers);
  for (std::size_t i = 0; i < count; ++i) {
    shown.push_back(count == 1 ? 0 : i * (layers - 1) / (count - 1));
  }
  return shown;
}

/// A curve per shown layer over the axis `x`, mean over the heads.
std::vector<Curve> layer_curves(const ResultArray& array, const std::string& x) {
  const ResultArray means = mean_over_others(array, {"layer", x});
  std::vector<Curve> curves;
  for (const std::size_t layer : shown_layers(means.axes[0].size())) {
    Curve curve{"layer " + means.axes[0].label(layer), {}, {}};
    for (std::size_t i = 0; i < means.axes[1].size(); ++i) {
      curve.x.push_back(means.axes[1].index[i]);
      curve.y.push_back(means.at({layer, i}));
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

/// [first, end) of the places in which some curve has a weight; all places if none has.
std::pair<std::size_t, std::size_t> weighed_places(const std::vector<Curve>& curves,
                                                   std::size_t count) {
  const auto weighed = [&](std::size_t place) {
    return std::ranges::any_of(curves, [&](const Curve& curve) { return curve.y[place] > 0.0; });
  };
  std::size_t first = 0;
  while (first < count && !weighed(first)) ++first;
  if (first == count) return {0, count};
  std::size_t end = count;
  while (!weighed(end - 1)) --end;
  return {first, end};
}

/// "-16", "-2k": a power of two, so that many fit along an axis.
std::string short_distance(double distance) {
  return std::abs(distance) < 1024 ? fmt::format("{}", distance)
                                   : fmt::format("{}k", distance / 1024);
}

}  // namespace

std::optional<ReportFigure> entropy_map(const MetricResult& result) {
  const ResultArray& entropy = result.array("entropy");
  const ValueRange range = range_of(mean_over_others(entropy, {"layer", "head"}));
  if (range.empty()) return std::nullopt;
  return head_map(
      entropy,
      {.name = "entropy",
       .title = "Entropy of attention per head",
       .caption = "Entropy of a query's attention weights over all keys, in nats: {}. 0: "
                  "all weight on one key. Mean over queries, blocks and steps.",
       .value = "entropy in nats",
       .upper = round_up_to(range.greatest)},
      result.formula);
}

std::optional<ReportFigure> attention_by_distance(const MetricResult& result) {
  const ResultArray& distance = result.array("by_distance");
  if (range_of(distance).empty()) return std::nullopt;
  LineChart chart{.x_label = "distance of the key in positions (-: before the block)",
                  .y_label = "share of the weight"};
  chart.curves = layer_curves(distance, "distance");
  chart.y_upper = round_up_to(largest_of(chart.curves));
  const auto [first, end] = weighed_places(chart.curves, distance.axes[2].size());
  for (Curve& curve : chart.curves) {
    for (std::vector<double>* values : {&curve.x, &curve.y}) {
      *values = {values->begin() + static_cast<std::ptrdiff_t>(first),
                 values->begin() + static_cast<std::ptrdiff_t>(end)};
    }
  }
  ReportFigure part;
  part.figure.name = "distance";
  part.figure.title = "Attention by distance";
  part.figure.caption = fmt::format(
      "Share of the weight on keys outside the block, in powers of two of their distance: a point "
      "at -16 has the keys 16 to 31 positions before the block; k: 1,024. Distances without weight "
      "at the ends are left out. Mean over heads, queries, blocks and steps. n = {} values.",
      count_text(total_terms(distance)));
  part.numbers = curve_numbers("distance", chart.curves);
  for (const double x : chart.curves.front().x) chart.x_names.push_back(short_distance(x));
  for (Curve& curve : chart.curves) std::iota(curve.x.begin(), curve.x.end(), 0.0);
  draw_chart(chart, part.figure);
  return part;
}

std::optional<ReportFigure> attention_in_block(const MetricResult& result) {
  const ResultArray& offset = result.array("by_offset");
  if (range_of(offset).empty() || offset.axes[2].size() < 2) return std::nullopt;
  LineChart chart{.x_label = "position of the key minus that of the query",
                  .y_label = "share of the weight"};
  chart.curves = layer_curves(offset, "offset");
  chart.y_upper = round_up_to(largest_of(chart.curves));
  ReportFigure part;
  part.figure.name = "offset";
  part.figure.title = "Attention inside the block";
  part.figure.caption = fmt::format(
      "Share of the weight on keys of the block, by their position from the query. Far offsets "
      "have fewer pairs of positions. Mean over heads, queries, blocks and steps. n = {} values.",
      count_text(total_terms(offset)));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("offset", chart.curves);
  return part;
}

std::optional<ReportTable> head_classes(const MetricResult& result) {
  const ResultArray& kinds = result.array("class");
  if (range_of(kinds).empty()) return std::nullopt;
  ReportTable part;
  part.name = "head-classes";
  part.title = "Kinds of heads";
  part.caption = fmt::format(
      "One class a head, written as layer.head; {}. Retrieval needs a trace of level full. n = {} "
      "heads.",
      result.formula, count_text(static_cast<std::int64_t>(kinds.values.size())));
  part.table.header = {"class", "heads", "which", "score"};
  // The array that decides each class, in the order of kHeadClasses.
  constexpr std::array<const char*, kHeadClasses.size()> kScores{"diffuse", "local", "first",
                                                                 "retrieval"};
  for (std::size_t kind = kHeadClasses.size(); kind-- > 0;) {
    const ResultArray& scores = result.array(kScores.at(kind));
    std::string which;
    std::size_t count = 0;
    double sum = 0.0;
    for (std::size_t layer = 0; layer < kinds.axes[0].size(); ++layer) {
      for (std::size_t head = 0; head < kinds.axes[1].size(); ++head) {
        if (kinds.at({layer, head}) != static_cast<double>(kind)) continue;
        ++count;
        sum += scores.at({layer, head});
        if (count <= kShownHeads) {
          which += fmt::format("{}{}.{}", which.empty() ? "" : ", ", kinds.axes[0].label(layer),
                               kinds.axes[1].label(head));
        }
      }
    }
    if (count == 0) continue;
    if (count > kShownHeads) which += fmt::format(" and {} more", count - kShownHeads);
    part.table.rows.push_back({std::string(kHeadClasses.at(kind)), std::to_string(count), which,
                               report_number(sum / static_cast<double>(count))});
  }
  return part;
}

std::optional<ReportFigure> regions_over_steps(const MetricResult& result) {
  const ResultArray& regions = result.array("regions_by_step");
  if (range_of(regions).empty()) return std::nullopt;
  LineChart chart{.x_label = "denoising step t", .y_label = "share of the weight"};
  for (std::size_t region = 0; region < regions.axes[0].size(); ++region) {
    Curve curve{regions.axes[0].label(region), regions.axes[1].index, {}};
    for (std::size_t step = 0; step < regions.axes[1].size(); ++step) {
      curve.y.push_back(regions.at({region, step}));
    }
    const bool used = std::any_of(curve.y.begin(), curve.y.end(), [](double y) { return y > 0; });
    if (!used) continue;
    const LineLook look = region_look(region, regions.axes[0].size());
    curve.color = look.color;
    curve.point = look.point;
    curve.dash = look.dash;
    chart.curves.push_back(std::move(curve));
  }
  if (chart.curves.empty()) return std::nullopt;
  ReportFigure part;
  part.figure.name = "regions";
  part.figure.title = "Attention by region";
  part.figure.caption = fmt::format(
      "Share of the weight by what stands at the position of the key: the first 4 positions, the "
      "rest of the prompt, earlier answer blocks, and the decided and masked positions of the "
      "block. Regions without weight are left out. Mean over layers, heads, queries and blocks. "
      "n = {} values.",
      count_text(total_terms(regions)));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

}  // namespace blockscope
