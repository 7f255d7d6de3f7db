#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/heatmap.h"
#include "analysis/figures/panels.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

std::vector<StepPair> adjacent_pairs(const BlockSteps& block) {
  std::vector<StepPair> pairs;
  for (std::size_t i = 1; i < block.steps.size(); ++i) {
    const StepRef& before = block.steps[i - 1];
    const StepRef& now = block.steps[i];
    if (before.recorded && now.recorded && now.step == before.step + 1) {
      pairs.push_back({before, now});
    }
  }
  return pairs;
}

/// `count` of them, evenly spread, including the first and the last.
std::vector<StepPair> spread_pairs(const std::vector<StepPair>& pairs, std::size_t count) {
  if (pairs.size() <= count || count < 2) return pairs;
  std::vector<StepPair> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(pairs[i * (pairs.size() - 1) / (count - 1)]);
  }
  return chosen;
}

std::string script_text(const std::vector<StepPair>& pairs, const Panels& panels, double lower,
                        std::size_t size) {
  std::string script = "set multiplot\n" + cell_axes(size, size);
  script += color_bar(panels, lower, 1.0, "cosine");
  for (std::size_t i = 0; i < panels.count; ++i) {
    const std::size_t column = panels.column(i);
    script += panels.place(i);
    // Below the first row the title is a comment, for readers of the script.
    script += fmt::format("{}set title 'steps {} \u2192 {}' offset 0,-0.7\n",
                          panels.row(i) == 0 ? "" : "unset title\n# ", pairs[column].first.step,
                          pairs[column].second.step);
    script += panels.is_lowest(i) ? "set xlabel 'token, step s' offset 0,0.5\nset format x '%g'\n"
                                  : "unset xlabel\nset format x ''\n";
    script += column == 0 ? fmt::format(
                                "set ylabel \"{{/:Bold*1.1 {}}}, step s+1\"\n"
                                "set format y '%g'\n",
                                panels.row(i) == 0 ? "A_{{out}}" : "A_{{in}}")
                          : "unset ylabel\nset format y ''\n";
    script += "plot " + cells_command(fmt::format("cells-{}.tsv", i)) + "\n";
    if (i == 0) script += "unset colorbox\n";
  }
  return script + "unset multiplot\n";
}

std::string where_text(const TraceReader& trace, const BlockSteps& block,
                       const HeatmapChoice& choice) {
  const TraceMeta& meta = trace.info().meta;
  const std::string head =
      choice.head_slot
          ? fmt::format("head {}", meta.heads.at(static_cast<std::size_t>(*choice.head_slot)))
          : counted(std::ssize(meta.heads), "head", "heads together");
  return fmt::format("Sequence {}, block {}, layer {}, {}", block.sequence, block.block,
                     meta.layers.at(static_cast<std::size_t>(choice.layer_slot)), head);
}

std::optional<std::size_t> head_of(const HeatmapChoice& choice) {
  if (!choice.head_slot) return std::nullopt;
  return static_cast<std::size_t>(*choice.head_slot);
}

}  // namespace

std::vector<StepPair> shown_pairs(const BlockSteps& block, std::size_t count) {
  return spread_pairs(adjacent_pairs(block), count);
}

std::optional<ReportFigure> token_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                           const HeatmapChoice& choice) {
  const std::vector<StepPair> all = adjacent_pairs(block);
  if (all.empty()) return std::nullopt;
  const std::vector<StepPair> pairs = spread_pairs(all, choice.pairs);
  std::vector<SimilarityMatrix> matrices;
  for (const Field field : {exact_fields(trace).external, Field::attention_internal}) {
    for (const StepPair& pair : pairs) {
      matrices.push_back(token_similarity(trace, field, pair.first.row, pair.second.row,
                                          static_cast<std::size_t>(choice.layer_slot),
                                          head_of(choice)));
    }
  }
  const ColorRange range = color_range(matrices);
  if (range.empty) return std::nullopt;
  Panels panels{.count = matrices.size(), .columns = pairs.size()};
  panels.plot_width = panels.plot_height = pairs.size() > 3 ? 132 : 180;
  panels.left = 76;
  panels.right = 84;
  panels.top = 30;
  panels.gap_x = panels.gap_y = 10;
  ReportFigure part;
  part.figure.name = "token-similarity";
  part.figure.title = "Token \u00d7 token similarity of adjacent steps";
  part.figure.caption = fmt::format(
      "Cosine of each token's attention output at step s (x) with each token's at step s+1 (y). On "
      "the diagonal, both are the same token. Above: A_out, attention to the prefix. Below: A_in, "
      "attention inside the block. One colour scale, from {:g} to 1. {}; {} of {} pairs of "
      "adjacent steps, n = {} comparisons each. As FlashBlock (arXiv 2602.05305), Fig. 1.",
      range.lower, where_text(trace, block, choice), pairs.size(), all.size(),
      matrices[0].rows * matrices[0].columns);
  part.figure.width = panels.width();
  part.figure.height = panels.height();
  part.figure.script = script_text(pairs, panels, range.lower, matrices[0].rows);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    part.figure.data.push_back({fmt::format("cells-{}.tsv", i), matrix_cells(matrices[i])});
  }
  return part;
}

namespace {

/// Two matrices of step x step, side by side.
struct StepMaps {
  std::array<Field, 2> fields;
  std::array<const char*, 2> titles;
  const char* name;
  const char* title;
  const char* what;    // "a token's attention output"
  const char* source;  // " As ...", may be empty
};

std::optional<ReportFigure> step_maps(const TraceReader& trace, const BlockSteps& block,
                                      const HeatmapChoice& choice, const StepMaps& maps) {
  if (adjacent_pairs(block).empty()) return std::nullopt;
  std::vector<SimilarityMatrix> matrices;
  for (const Field field : maps.fields) {
    const bool of_kv_heads = spec_of(field).axes[2] == Axis::kv_head;
    matrices.push_back(step_similarity(trace, field, block,
                                       static_cast<std::size_t>(choice.layer_slot),
                                       of_kv_heads ? std::nullopt : head_of(choice)));
  }
  const ColorRange range = color_range(matrices);
  if (range.empty) return std::nullopt;
  Panels panels{.count = 2, .columns = 2};
  panels.plot_width = panels.plot_height = 250;
  panels.right = 84;
  panels.top = 30;
  const std::size_t steps = matrices[0].rows;
  std::string script = "set multiplot\n" + cell_axes(steps, steps);
  // Steps count from 1.
  script += fmt::format("set xrange [0.5:{0}.5]\nset yrange [{0}.5:0.5]\n", steps);
  script +=
      fmt::format("set xtics 1, {0}\nset ytics 1, {0}\n", std::max<std::size_t>(1, steps / 5));
  script += color_bar(panels, range.lower, 1.0, "mean cosine");
  script += "set xlabel 'step'\n";
  for (std::size_t i = 0; i < 2; ++i) {
    script += panels.place(i);
    script += fmt::format("set title '{}' offset 0,-0.7\n", maps.titles[i]);
    script += i == 0 ? "set ylabel 'step'\n" : "unset ylabel\nset format y ''\n";
    script += "plot " + cells_command(fmt::format("steps-{}.tsv", i)) + "\n";
    if (i == 0) script += "unset colorbox\n";
  }
  ReportFigure part;
  part.figure = {.name = maps.name,
                 .title = maps.title,
                 .caption = fmt::format(
                     "Cosine of {} at any two steps of the block, mean over "
                     "the block's tokens{}. One colour scale, from {:g} to 1. {}; {}, n = up "
                     "to {} per cell.{}",
                     maps.what, choice.head_slot ? "" : " and heads", range.lower,
                     where_text(trace, block, choice),
                     counted(static_cast<std::int64_t>(steps), "step", "steps"),
                     counted(trace.info().meta.block_length, "token", "tokens"), maps.source),
                 .width = panels.width(),
                 .height = panels.height(),
                 .script = script + "unset multiplot\n",
                 .data = {{"steps-0.tsv", matrix_cells(matrices[0], 1.0)},
                          {"steps-1.tsv", matrix_cells(matrices[1], 1.0)}}};
  return part;
}

}  // namespace

std::optional<ReportFigure> step_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                          const HeatmapChoice& choice) {
  return step_maps(trace, block, choice,
                   {{exact_fields(trace).external, Field::attention_internal},
                    {"A_{out}", "A_{in}"},
                    "step-similarity",
                    "Step \u00d7 step similarity",
                    "a token's attention output",
                    ""});
}

std::optional<ReportFigure> kv_step_heatmaps(const TraceReader& trace, const BlockSteps& block,
                                             const HeatmapChoice& choice) {
  HeatmapChoice heads = choice;
  heads.head_slot.reset();
  return step_maps(trace, block, heads,
                   {{Field::block_key, Field::block_value},
                    {"keys", "values"},
                    "kv-step-similarity",
                    "Step \u00d7 step similarity of keys and values",
                    "a position's key (value), in the state in which the step read it,",
                    " As Fast-dLLM (arXiv 2505.22618), Fig. 3."});
}

}  // namespace blockscope
