// The two pictures of the Calibration panel: the grid of heads and the trade-off.
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "viewer/panels/calibration_parts.h"

namespace blockscope {
namespace {

/// Whether the head reuses in this range of steps, or in all.
bool reuses(const Calibration& result, const std::optional<std::size_t>& range, std::size_t layer,
            std::size_t head) {
  if (range) return result.reuse.heads[*range][layer][head];
  return std::ranges::all_of(result.reuse.heads,
                             [&](const HeadMatrix<bool>& mask) { return bool{mask[layer][head]}; });
}

/// The similarity in this range of steps, or the least of all.
double similarity_of(const CalibrationSums& sums, const std::optional<std::size_t>& range,
                     std::size_t layer, std::size_t head) {
  if (range) return sums.similarity[*range][layer][head];
  double least = kNotMeasured;
  for (const HeadMatrix<double>& matrix : sums.similarity)
    least = std::fmin(least, matrix[layer][head]);
  return least;
}

CellMark mark_of(const CalibrationEdit& edit, const std::optional<std::size_t>& range,
                 std::size_t layer, std::size_t head) {
  const bool reuse = reuses(*edit.result(), range, layer, head);
  const bool pinned =
      edit.pin_of(static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head)).has_value();
  if (reuse) return pinned ? CellMark::frame_dot : CellMark::frame;
  return pinned ? CellMark::dim_cross : CellMark::dim;
}

std::shared_ptr<const MatrixPayload> similarity_grid(const CalibrationSums& sums,
                                                     const std::optional<std::size_t>& range) {
  SimilarityMatrix matrix;
  matrix.rows = static_cast<std::size_t>(sums.model.layers);
  matrix.columns = static_cast<std::size_t>(sums.model.heads);
  for (std::size_t layer = 0; layer < matrix.rows; ++layer) {
    for (std::size_t head = 0; head < matrix.columns; ++head) {
      matrix.values.push_back(static_cast<float>(similarity_of(sums, range, layer, head)));
    }
  }
  return with_range(std::move(matrix));
}

/// The measurements of a head in one range of steps.
std::string range_text(const CalibrationSums& sums, std::size_t range, std::size_t layer,
                       std::size_t head) {
  std::string text;
  if (sums.ranges.size() > 1) text = fmt::format("steps from {}: ", sums.ranges.first[range]);
  const double similarity = sums.similarity[range][layer][head];
  if (std::isnan(similarity)) return text + "no step pair, so it never reuses\n";
  const double error = sums.standard_error[range][layer][head];
  text += fmt::format("similarity {:.5f} \u00B1 {} (standard error, n = {} step pairs)\n",
                      similarity, std::isnan(error) ? "?" : fmt::format("{:.5f}", error),
                      sums.count[range][layer][head]);
  text += fmt::format("5th percentile {:.5f}", sums.p5[range][layer][head]);
  if (!sums.lse_drift.empty()) {
    text += fmt::format(", mean change of L_out {:.5f}", sums.lse_drift[range][layer][head]);
  }
  return text + "\n";
}

std::string head_text(const CalibrationEdit& edit, const std::optional<std::size_t>& range,
                      std::size_t layer, std::size_t head) {
  const CalibrationSums& sums = *edit.sums();
  std::string text = fmt::format("layer {}, head {}\n", layer, head);
  if (std::isnan(similarity_of(sums, range, layer, head))) {
    return text + "not recorded: without a similarity, it never reuses";
  }
  for (std::size_t r = 0; r < sums.ranges.size(); ++r) {
    if (!range || *range == r) text += range_text(sums, r, layer, head);
  }
  const Calibration* result = edit.result();
  if (result == nullptr) return text;
  const bool reuse = reuses(*result, range, layer, head);
  const char* now = reuse ? "reuses" : "recomputes";
  const char* other = reuse ? "recompute" : "reuse";
  const char* whose = result->granularity == ReuseGranularity::kv_group ? "its KV head" : "it";
  const auto pin = edit.pin_of(static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head));
  text +=
      pin ? fmt::format("{}, because it is pinned\nclick: gamma decides for {} again", now, whose)
          : fmt::format("{}, decided by gamma {:.6g}{}\nclick: pins {} to {}", now,
                        result->gamma[range.value_or(0)],
                        result->lse_bound ? " and the bound of L_out" : "", whose, other);
  return text + "\nright click: selects the head";
}

void select_head(ViewModel& model, const HeatmapHit& hit) {
  const TraceMeta& meta = model.overview()->info.meta;
  const auto layer = std::ranges::find(meta.layers, static_cast<std::int64_t>(hit.row));
  const auto head = std::ranges::find(meta.heads, static_cast<std::int64_t>(hit.column));
  if (layer == meta.layers.end() || head == meta.heads.end()) return;
  Selection selection = model.selection();
  selection.layer = static_cast<std::size_t>(layer - meta.layers.begin());
  selection.head = static_cast<std::size_t>(head - meta.heads.begin());
  model.select(selection);
}

struct Line {
  std::vector<double> saving, error;  ///< percent
  std::vector<double> gamma;
};

double saving_of(const ReusePoint& point, bool flops) {
  return 100.0 * (flops ? point.flop_saving : point.byte_saving);
}

Line line_of(const ReuseCurve& curve, bool flops) {
  Line line;
  for (const ReusePoint& point : curve.points) {
    if (std::isnan(point.relative_l2_reused)) continue;
    line.saving.push_back(saving_of(point, flops));
    line.error.push_back(100.0 * point.relative_l2_reused);
    line.gamma.push_back(point.gamma);
  }
  return line;
}

/// Index of the nearest point within reach of the mouse; -1 if there is none.
std::ptrdiff_t nearest_to_mouse(const Line& line) {
  constexpr float kReach = 24.0F;  // pixels
  const ImVec2 mouse = ImGui::GetMousePos();
  float best = kReach * kReach;
  std::ptrdiff_t found = -1;
  for (std::size_t i = 0; i < line.gamma.size(); ++i) {
    const ImVec2 at = ImPlot::PlotToPixels(line.saving[i], line.error[i]);
    const float distance =
        (at.x - mouse.x) * (at.x - mouse.x) + (at.y - mouse.y) * (at.y - mouse.y);
    if (distance >= best) continue;
    best = distance;
    found = static_cast<std::ptrdiff_t>(i);
  }
  return found;
}

void take_gamma_from_click(CalibrationEdit& edit, const Line& line) {
  if (!ImPlot::IsPlotHovered()) return;
  const std::ptrdiff_t nearest = nearest_to_mouse(line);
  if (nearest < 0) return;
  const auto i = static_cast<std::size_t>(nearest);
  ImGui::SetTooltip(
      "gamma %.6g: %.2f %% not read, error where reused %.2f %%\nclick: uses this gamma",
      line.gamma[i], line.saving[i], line.error[i]);
  if (!ImGui::IsMouseClicked(ImGuiMouseButton_Left)) return;
  CalibrationChoice choice = edit.choice();
  choice.set_gamma({}, line.gamma[i]);
  edit.change(std::move(choice));
}

}  // namespace

void draw_calibration_grid(PanelContext& context, CalibrationEdit& edit, float width,
                           float height) {
  CalibrationState& state = context.state.of<CalibrationState>();
  if (edit.sums() == nullptr) return;
  if (state.range && *state.range >= edit.sums()->ranges.size()) state.range.reset();
  if (state.grid_of.get() != edit.sums() || state.grid_range != state.range) {
    state.grid_of = edit.shared_sums();
    state.grid_range = state.range;
    state.grid = similarity_grid(*edit.sums(), state.range);
  }
  HeatmapPlot plot;
  plot.id = "calibration";
  plot.title = "similarity of A_out, and the heads that reuse###calibration-grid";
  plot.x_label = "head";
  plot.y_label = "layer";
  plot.unit = "cosine";
  plot.width = width;
  plot.height = height;
  plot.tooltip = [&edit, range = state.range](const HeatmapHit& hit) {
    return head_text(edit, range, hit.row, hit.column);
  };
  if (edit.result() != nullptr) {
    for (std::size_t layer = 0; layer < state.grid->matrix.rows; ++layer) {
      for (std::size_t head = 0; head < state.grid->matrix.columns; ++head) {
        plot.marks.push_back(mark_of(edit, state.range, layer, head));
      }
    }
  }
  const auto hit = draw_heatmap(context, plot, state.grid);
  if (hit && hit->clicked) {
    edit.toggle_pin(static_cast<std::int64_t>(hit->row), static_cast<std::int64_t>(hit->column));
  }
  if (hit && ImGui::IsMouseClicked(ImGuiMouseButton_Right)) select_head(context.model, *hit);
}

std::vector<CellMark> reuse_marks_of_trace(const ViewModel& model, CalibrationState& state) {
  if (!calibration_in_use(state) || !state.show_in_heads) return {};
  const CalibrationEdit* edit = active_calibration(model, state);
  if (edit == nullptr || edit->result() == nullptr) return {};
  std::vector<CellMark> marks;
  const TraceMeta& meta = model.overview()->info.meta;
  for (const std::int64_t layer : meta.layers) {
    for (const std::int64_t head : meta.heads) {
      marks.push_back(mark_of(*edit, state.range, static_cast<std::size_t>(layer),
                              static_cast<std::size_t>(head)));
    }
  }
  return marks;
}

void draw_calibration_curve(PanelContext& context, CalibrationEdit& edit, float width,
                            float height) {
  const bool flops = context.state.of<CalibrationState>().against_flops;
  const std::string title =
      fmt::format("error against saving, over gamma, tau {}{}###calibration-curve",
                  edit.choice().tau, edit.choice().pins.empty() ? "" : ", with the pins");
  ImPlot::PushStyleVar(ImPlotStyleVar_FitPadding, ImVec2(0.04F, 0.06F));
  const bool open =
      ImPlot::BeginPlot(title.c_str(), ImVec2(width, height), ImPlotFlags_NoMouseText);
  if (!open) return ImPlot::PopStyleVar();
  ImPlot::SetupAxes(
      flops ? "FLOPs of the external attention not spent (%)" : "prefix bytes not read (%)",
      "error where reused (%)", ImPlotAxisFlags_AutoFit, ImPlotAxisFlags_AutoFit);
  ImPlot::SetupLegend(ImPlotLocation_East, ImPlotLegendFlags_Outside);
  Line chosen;
  for (const ReuseCurve& curve : edit.curves()) {
    const Line line = line_of(curve, flops);
    const bool is_chosen = curve.tau == edit.choice().tau;
    ImPlotSpec spec;
    spec.LineColor = is_chosen ? ImGui::ColorConvertU32ToFloat4(kExternalColour)
                               : ImVec4(0.55F, 0.55F, 0.55F, 0.5F);
    spec.LineWeight = is_chosen ? 2.5F : 1.0F;
    spec.Marker = is_chosen ? ImPlotMarker_Circle : ImPlotMarker_None;
    spec.MarkerSize = 2.5F;
    if (line.gamma.empty()) continue;  // this tau never reuses, or its error is unknown
    const std::string label = fmt::format("tau {}", curve.tau);
    ImPlot::PlotLine(label.c_str(), line.saving.data(), line.error.data(),
                     static_cast<int>(line.saving.size()), spec);
    if (is_chosen) chosen = line;
  }
  if (edit.result() != nullptr && !std::isnan(edit.result()->predicted.point.relative_l2_reused)) {
    const ReusePoint& point = edit.result()->predicted.point;
    const double x = saving_of(point, flops);
    const double y = 100.0 * point.relative_l2_reused;
    ImPlotSpec spec;
    spec.Marker = ImPlotMarker_Diamond;
    spec.MarkerSize = 8.0F;
    spec.MarkerFillColor = ImGui::ColorConvertU32ToFloat4(kInternalColour);
    spec.MarkerLineColor = ImVec4(0.0F, 0.0F, 0.0F, 1.0F);
    spec.LineColor = spec.MarkerFillColor;  // colour in the legend
    const std::string label = fmt::format("gamma {:.6g}", point.gamma);
    ImPlot::PlotScatter((label + "###now").c_str(), &x, &y, 1, spec);
  }
  take_gamma_from_click(edit, chosen);
  ImPlot::EndPlot();
  ImPlot::PopStyleVar();
}

}  // namespace blockscope
