// The contents of the Compare panel as tables.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "viewer/model/comparison.h"

namespace blockscope {
namespace {

using Cell = CsvTable::Cell;

/// Index of a recorded number, or -1.
std::ptrdiff_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t wanted) {
  const auto found = std::ranges::find(recorded, wanted);
  return found == recorded.end() ? -1 : found - recorded.begin();
}

Cell grid_cell(const std::shared_ptr<const MatrixPayload>& grid, const TraceMeta& meta,
               std::int64_t layer, std::int64_t head) {
  if (!grid) return {};
  const std::ptrdiff_t row = slot_of(meta.layers, layer);
  const std::ptrdiff_t column = slot_of(meta.heads, head);
  if (row < 0 || column < 0) return {};
  return double{grid->matrix.values[static_cast<std::size_t>(row) * grid->matrix.columns +
                                    static_cast<std::size_t>(column)]};
}

/// Sorted union of two lists.
std::vector<std::int64_t> united(std::vector<std::int64_t> a, const std::vector<std::int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::ranges::sort(a);
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}

using Coordinates = std::array<std::int64_t, 3>;

/// Values of an array [layer, head, step] by the numbers of its axes.
std::map<Coordinates, double> by_coordinates(const ResultArray& array) {
  std::map<Coordinates, double> result;
  if (array.axes.size() != 3) return result;
  std::size_t flat = 0;
  for (const double layer : array.axes[0].index) {
    for (const double head : array.axes[1].index) {
      for (const double step : array.axes[2].index) {
        result[{static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head),
                static_cast<std::int64_t>(step)}] = array.values[flat++];
      }
    }
  }
  return result;
}

Cell at_or_empty(const std::map<Coordinates, double>& values, const Coordinates& at) {
  const auto found = values.find(at);
  return found == values.end() ? Cell{} : Cell{found->second};
}

/// "masked", "only A", "only B", "equal", "different".
const char* name_of(TokenState state) {
  constexpr std::array<const char*, 5> kNames = {"masked", "only A", "only B", "equal",
                                                 "different"};
  return kNames[static_cast<std::size_t>(state)];
}

}  // namespace

CsvTable compared_heads_table(const MetricComparison& data, const PanelMetric& choice,
                              const TraceMeta& meta_a, const TraceMeta& meta_b) {
  const auto side = [&](const char* name) {
    return fmt::format("{}: {} [{}]", name, choice.view.label, choice.view.unit);
  };
  CsvTable table({"layer", "head", side("A"), side("B"), side("B - A")});
  for (const std::int64_t layer : united(meta_a.layers, meta_b.layers)) {
    for (const std::int64_t head : united(meta_a.heads, meta_b.heads)) {
      table.add({layer, head, grid_cell(data.grid_a, meta_a, layer, head),
                 grid_cell(data.grid_b, meta_b, layer, head),
                 grid_cell(data.grid_difference, meta_a, layer, head)});
    }
  }
  return table;
}

CsvTable compared_steps_table(const MetricComparison& data, const PanelMetric& choice) {
  const ResultArray& named = data.by_step_a.axes.size() == 3 ? data.by_step_a : data.by_step_b;
  const std::string head = named.axes.size() == 3 ? named.axes[1].name : "head";
  const auto side = [&](const char* name) {
    return fmt::format("{}: {} [{}]", name, choice.view.label, choice.view.unit);
  };
  CsvTable table({"layer", head, "step", side("A"), side("B"), side("B - A")});
  const auto a = by_coordinates(data.by_step_a);
  const auto b = by_coordinates(data.by_step_b);
  const auto difference = by_coordinates(data.by_step_difference);
  std::map<Coordinates, double> all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [at, value] : all) {
    table.add(
        {at[0], at[1], at[2], at_or_empty(a, at), at_or_empty(b, at), at_or_empty(difference, at)});
  }
  return table;
}

CsvTable compared_tokens_table(const TokensPayload& data) {
  CsvTable table({"step", "position", "state", "A at the end", "B at the end"});
  const TokenComparison& tokens = data.tokens;
  for (std::int64_t step = 0; step < std::max(tokens.steps_a, tokens.steps_b); ++step) {
    for (std::int64_t position = 0; position < tokens.positions; ++position) {
      const auto at = static_cast<std::size_t>(position);
      table.add({step, position, std::string(name_of(tokens.state(step, position))),
                 data.text_a[at], data.text_b[at]});
    }
  }
  return table;
}

CsvTable compared_queries_table(const MetricResult& result) {
  CsvTable table({"array", "unit", "model", "axis", "element", "value", "terms"});
  for (const ResultArray& array : result.arrays) {
    const bool has_model = array.has_axis("model");
    const std::size_t model = has_model ? array.axis("model") : 0;
    const std::size_t other = has_model ? 1 - model : 0;
    for (std::size_t i = 0; i < array.values.size(); ++i) {
      const std::size_t last = array.axes.back().size();
      const std::array<std::size_t, 2> at = {array.axes.size() == 2 ? i / last : i, i % last};
      table.add({array.name, array.unit,
                 has_model ? Cell{array.axes[model].label(at[model])} : Cell{},
                 array.axes[other].name, array.axes[other].label(at[other]), array.values[i],
                 i < array.terms.size() ? Cell{array.terms[i]} : Cell{}});
    }
  }
  return table;
}

}  // namespace blockscope
