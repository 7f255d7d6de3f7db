// The Heads panel: one metric per layer and head, averaged over the chosen scope. A click selects
// the head.
#include <fmt/format.h>
#include <imgui.h>

#include "viewer/model/panel_metrics.h"
#include "viewer/panels/calibration_parts.h"
#include "viewer/panels/heads_state.h"
#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/metric_picker.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

void draw_heads_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.block() == nullptr) return explain_missing("No trace is open.");
  HeadsState& state = context.state.of<HeadsState>();
  pick_metric("##metric", state.metric, context.scale);
  ImGui::SameLine();
  pick_scope("##scope", state.scope, context.scale);
  const PanelMetric& choice = panel_metrics()[state.metric];
  if (!has_metric(model.overview()->info.meta, choice)) return;
  const auto data = model.metric("heads", choice.metric, state.scope);
  if (!ready_or_explain(data)) return;
  const TraceMeta& meta = model.overview()->info.meta;
  if (state.grid_of != data.value || state.grid_metric != state.metric) {
    state.grid = with_range(head_grid(data.value->result, choice, meta));
    state.grid_of = data.value;
    state.grid_metric = state.metric;
  }
  const std::shared_ptr<const MatrixPayload>& grid = state.grid;
  const ImVec2 space = ImGui::GetContentRegionAvail();
  HeatmapPlot plot;
  plot.id = "heads";
  plot.title = fmt::format("{}###heads", choice.view.label);
  plot.x_label = "head";
  plot.y_label = "layer";
  plot.x_numbers = &meta.heads;
  plot.y_numbers = &meta.layers;
  plot.unit = choice.view.unit;
  plot.width = space.x;
  plot.height = space.y - ImGui::GetTextLineHeightWithSpacing();
  plot.mark_x = static_cast<double>(model.selection().head);
  plot.mark_y = static_cast<double>(model.selection().layer);
  plot.marks = reuse_marks_of_trace(model, context.state.of<CalibrationState>());
  const auto hit = draw_heatmap(context, plot, grid);
  if (hit && hit->clicked) {
    Selection selection = model.selection();
    selection.layer = hit->row;
    selection.head = hit->column;
    model.select(selection);
  }
  ImGui::TextDisabled("layer %lld, head %lld; %zu cells without a value",
                      static_cast<long long>(meta.layers[model.selection().layer]),
                      static_cast<long long>(meta.heads[model.selection().head]), grid->missing);
}

std::optional<CsvTable> heads_panel_table(PanelContext& context) {
  const HeadsState& state = context.state.of<HeadsState>();
  if (context.model.block() == nullptr || !state.grid) return std::nullopt;
  return heads_table(*state.grid, panel_metrics()[state.grid_metric],
                     context.model.overview()->info.meta);
}

void show_heads_metric(PanelStates& states, std::size_t metric) {
  states.of<HeadsState>().metric = metric;
}

void show_heads_scope(PanelStates& states, ViewModel::Scope scope) {
  states.of<HeadsState>().scope = scope;
}

}  // namespace

Panel heads_panel() {
  return {.name = "Heads",
          .draw = draw_heads_panel,
          .table = heads_panel_table,
          .place = PanelPlace::bottom_left,
          .show = {.take_metric = show_heads_metric, .take_scope = show_heads_scope}};
}

}  // namespace blockscope
