#include "viewer/model/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace blockscope {
namespace {

using Cell = CsvTable::Cell;

Cell value_of(float value) { return static_cast<double>(value); }

std::string with_unit(const std::string& name, const std::string& unit) {
  return fmt::format("{} [{}]", name, unit);
}

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
  return value_of(grid->matrix.values[static_cast<std::size_t>(row) * grid->matrix.columns +
                                      static_cast<std::size_t>(column)]);
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

}  // namespace

const char* name_of(TokenState state) {
  constexpr std::array<const char*, 5> kNames = {"masked", "only A", "only B", "equal",
                                                 "different"};
  return kNames[static_cast<std::size_t>(state)];
}

CsvTable heads_table(const MatrixPayload& grid, const PanelMetric& choice, const TraceMeta& meta) {
  CsvTable table({"layer", "head", with_unit(choice.label, choice.unit)});
  for (std::size_t row = 0; row < grid.matrix.rows; ++row) {
    for (std::size_t column = 0; column < grid.matrix.columns; ++column) {
      table.add({meta.layers[row], meta.heads[column],
                 value_of(grid.matrix.values[row * grid.matrix.columns + column])});
    }
  }
  return table;
}

CsvTable curves_table(const ResultArray& means, const PanelMetric& choice, const TraceMeta& meta,
                      std::size_t layer) {
  CsvTable table({"layer", "head", "step", with_unit(choice.label, choice.unit)});
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
               value_of(external.values[i]), value_of(internal.values[i])});
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

CsvTable matrices_table(const MatrixPayload* external, const MatrixPayload* internal,
                        const MatrixAxes& axes) {
  CsvTable table({axes.rows, axes.columns, "A_out [cosine]", "A_in [cosine]"});
  const MatrixPayload* any = external != nullptr ? external : internal;
  if (any == nullptr) return table;
  const auto cell = [](const MatrixPayload* matrix, std::size_t at) {
    return matrix == nullptr ? Cell{} : value_of(matrix->matrix.values[at]);
  };
  for (std::size_t row = 0; row < any->matrix.rows; ++row) {
    for (std::size_t column = 0; column < any->matrix.columns; ++column) {
      const std::size_t at = row * any->matrix.columns + column;
      table.add({std::int64_t{axes.row_numbers.at(row)},
                 std::int64_t{axes.column_numbers.at(column)}, cell(external, at),
                 cell(internal, at)});
    }
  }
  return table;
}

CsvTable sets_table(const SetsPayload& sets) {
  CsvTable table({"step", "rank", "position in the prefix", "token", "probability"});
  for (std::size_t i = 0; i < sets.positions.size(); ++i) {
    if (sets.positions[i] < 0) continue;
    const auto position = static_cast<std::size_t>(sets.positions[i]);
    table.add({std::int64_t{sets.steps[i / sets.k]}, static_cast<std::int64_t>(i % sets.k) + 1,
               std::int64_t{sets.positions[i]},
               position < sets.token_texts.size() ? Cell{sets.token_texts[position]} : Cell{},
               value_of(sets.probability[i])});
  }
  return table;
}

CsvTable trajectory_table(const Trajectory& trajectory) {
  CsvTable table({"position", "step", "block", "step in block", "token", "confidence"});
  for (const Trajectory::Cell& cell : trajectory.cells) {
    if (cell.step < 0 || cell.step >= std::ssize(trajectory.rows)) continue;
    const Trajectory::Row& row = trajectory.rows[static_cast<std::size_t>(cell.step)];
    table.add({std::int64_t{cell.position}, std::int64_t{cell.step}, std::int64_t{row.block},
               std::int64_t{row.step_in_block}, cell.text, value_of(cell.confidence)});
  }
  return table;
}

CsvTable compared_heads_table(const MetricComparison& data, const PanelMetric& choice,
                              const TraceMeta& meta_a, const TraceMeta& meta_b) {
  const auto side = [&](const char* name) {
    return with_unit(fmt::format("{}: {}", name, choice.label), choice.unit);
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
    return with_unit(fmt::format("{}: {}", name, choice.label), choice.unit);
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

CsvTable calibration_table(const CalibrationEdit& edit) {
  CsvTable table({"layer", "head", "similarity of A_out [cosine]", "standard error", "p5",
                  "step pairs", "reuse", "pinned"});
  if (edit.sums() == nullptr || edit.result() == nullptr) return table;
  const CalibrationSums& sums = *edit.sums();
  for (std::size_t layer = 0; layer < sums.similarity.size(); ++layer) {
    for (std::size_t head = 0; head < sums.similarity[layer].size(); ++head) {
      const auto l = static_cast<std::int64_t>(layer);
      const auto h = static_cast<std::int64_t>(head);
      table.add({l, h, sums.similarity[layer][head], sums.standard_error[layer][head],
                 sums.p5[layer][head], sums.count[layer][head],
                 std::int64_t{edit.result()->reuse[layer][head]},
                 std::int64_t{edit.pin_of(l, h).has_value()}});
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
