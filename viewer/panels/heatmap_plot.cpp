#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/plot_axes.h"

#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace blockscope {
namespace {

constexpr float kBarWidth = 74.0F;
constexpr float kWideBarWidth = 100.0F;  // for labels such as -0.0004

void mark(double low_x, double low_y, double high_x, double high_y) {
  const ImVec2 a = ImPlot::PlotToPixels(low_x, low_y);
  const ImVec2 b = ImPlot::PlotToPixels(high_x, high_y);
  ImPlot::PushPlotClipRect();
  ImDrawList* draw = ImPlot::GetPlotDrawList();
  const ImVec2 low(std::min(a.x, b.x), std::min(a.y, b.y));
  const ImVec2 high(std::max(a.x, b.x), std::max(a.y, b.y));
  // White on black is visible on every colour.
  draw->AddRect(low, high, 0xFF000000U, 0.0F, 0, 3.0F);
  draw->AddRect(low, high, 0xFFFFFFFFU, 0.0F, 0, 1.2F);
  ImPlot::PopPlotClipRect();
}

/// Highlighted cells keep their colour and get a frame; a veil darkens the others.
void draw_marks(const std::vector<CellMark>& marks, std::size_t columns, double x0, double y0) {
  ImPlot::PushPlotClipRect();
  ImDrawList* draw = ImPlot::GetPlotDrawList();
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == CellMark::none) continue;
    const double x = x0 + static_cast<double>(i % columns);
    const double y = y0 + static_cast<double>(i / columns);
    const ImVec2 a = ImPlot::PlotToPixels(x, y);
    const ImVec2 b = ImPlot::PlotToPixels(x + 1.0, y + 1.0);
    const ImVec2 low(std::min(a.x, b.x), std::min(a.y, b.y));
    const ImVec2 high(std::max(a.x, b.x), std::max(a.y, b.y));
    const ImVec2 centre((low.x + high.x) / 2, (low.y + high.y) / 2);
    const float size = std::min(high.x - low.x, high.y - low.y);
    const float inset = std::min(2.0F, size * 0.1F);
    const float radius = std::clamp(size * 0.16F, 1.0F, 6.0F);
    if (marks[i] == CellMark::dim || marks[i] == CellMark::dim_cross) {
      draw->AddRectFilled(low, high, 0xB0202020U);
    } else {
      const ImVec2 from(low.x + inset, low.y + inset);
      const ImVec2 to(high.x - inset, high.y - inset);
      draw->AddRect(from, to, 0xFF000000U, 0.0F, 0, 3.5F);
      draw->AddRect(from, to, 0xFFFFFFFFU, 0.0F, 0, 1.6F);
    }
    if (marks[i] == CellMark::frame_dot) {
      draw->AddCircleFilled(centre, radius + 1.5F, 0xFF000000U);
      draw->AddCircleFilled(centre, radius, 0xFFFFFFFFU);
    } else if (marks[i] == CellMark::dim_cross) {
      for (const float side : {-1.0F, 1.0F}) {
        draw->AddLine(ImVec2(centre.x - radius, centre.y - side * radius),
                      ImVec2(centre.x + radius, centre.y + side * radius), 0xFFFFFFFFU, 2.0F);
      }
    }
  }
  ImPlot::PopPlotClipRect();
}

/// Strokes over cells without a value, so they can't be mistaken for a grey of the colour map.
void hatch(const HeatmapPlot& plot, const SimilarityMatrix& values, std::size_t columns,
           std::size_t rows) {
  constexpr float kSmallest = 5.0F;  // pixels; smaller cells are only grey
  ImPlot::PushPlotClipRect();
  ImDrawList* draw = ImPlot::GetPlotDrawList();
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      const std::size_t index =
          plot.transpose ? column * values.columns + row : row * values.columns + column;
      if (!std::isnan(values.values[index])) continue;
      const double x = plot.first_x + static_cast<double>(column);
      const double y = plot.first_y + static_cast<double>(row);
      const ImVec2 a = ImPlot::PlotToPixels(x - 0.5, y + 0.5);
      const ImVec2 b = ImPlot::PlotToPixels(x + 0.5, y - 0.5);
      if (std::abs(b.x - a.x) < kSmallest || std::abs(b.y - a.y) < kSmallest) {
        return ImPlot::PopPlotClipRect();
      }
      draw->AddLine(a, b, 0xFF404040U, 1.0F);
      draw->AddLine(ImVec2((a.x + b.x) / 2, a.y), ImVec2(b.x, (a.y + b.y) / 2), 0xFF404040U, 1.0F);
      draw->AddLine(ImVec2(a.x, (a.y + b.y) / 2), ImVec2((a.x + b.x) / 2, b.y), 0xFF404040U, 1.0F);
    }
  }
  ImPlot::PopPlotClipRect();
}

/// Hatches the cells without a value, and names them in the legend.
void draw_missing(const HeatmapPlot& plot, const SimilarityMatrix& values, std::size_t columns,
                  std::size_t rows) {
  hatch(plot, values, columns, rows);
  ImPlotSpec grey;
  grey.LineColor = ImGui::ColorConvertU32ToFloat4(kNoValueColour);
  const double nowhere = std::numeric_limits<double>::quiet_NaN();
  ImPlot::PlotLine("no value (NaN)", &nowhere, &nowhere, 1, grey);
}

/// The cell under the mouse; nullopt if there is none.
std::optional<HeatmapHit> hit_cell(double x0, double y0, std::size_t columns, std::size_t rows) {
  if (!ImPlot::IsPlotHovered()) return std::nullopt;
  const ImPlotPoint mouse = ImPlot::GetPlotMousePos();
  const double column = std::floor(mouse.x - x0);
  const double row = std::floor(mouse.y - y0);
  if (column < 0 || row < 0 || column >= static_cast<double>(columns) ||
      row >= static_cast<double>(rows)) {
    return std::nullopt;
  }
  return HeatmapHit{static_cast<std::size_t>(column), static_cast<std::size_t>(row),
                    ImGui::IsMouseClicked(ImGuiMouseButton_Left)};
}

void show_cell_tooltip(const HeatmapPlot& plot, const SimilarityMatrix& values,
                       const HeatmapHit& hit) {
  if (plot.tooltip) return ImGui::SetTooltip("%s", plot.tooltip(hit).c_str());
  const float value = values.values[plot.transpose ? hit.column * values.columns + hit.row
                                                   : hit.row * values.columns + hit.column];
  const auto called = [](const std::vector<std::int64_t>* names, double first, std::size_t cell) {
    return names != nullptr ? static_cast<double>(names->at(cell))
                            : first + static_cast<double>(cell);
  };
  const double x = called(plot.x_numbers, plot.first_x, hit.column);
  const double y = called(plot.y_numbers, plot.first_y, hit.row);
  if (std::isnan(value)) {
    ImGui::SetTooltip("%s %g, %s %g: no value (NaN)", plot.x_label.c_str(), x, plot.y_label.c_str(),
                      y);
  } else {
    ImGui::SetTooltip("%s %g, %s %g\n%s %.5f", plot.x_label.c_str(), x, plot.y_label.c_str(), y,
                      plot.unit.c_str(), static_cast<double>(value));
  }
}

}  // namespace

std::pair<float, float> colour_range(const Appearance& appearance, const MatrixPayload& matrix,
                                     const HeatmapPlot& plot) {
  if (appearance.lock_range && !plot.own_range) return {appearance.low, appearance.high};
  const bool any = matrix.low <= matrix.high;
  return {plot.low.value_or(any ? matrix.low : 0.0F), plot.high.value_or(any ? matrix.high : 1.0F)};
}

std::optional<HeatmapHit> draw_heatmap(PanelContext& context, const HeatmapPlot& plot,
                                       const std::shared_ptr<const MatrixPayload>& matrix) {
  const SimilarityMatrix& values = matrix->matrix;
  if (values.values.empty()) return std::nullopt;
  const std::size_t columns = plot.transpose ? values.rows : values.columns;
  const std::size_t rows = plot.transpose ? values.columns : values.rows;
  const auto [low, high] = colour_range(context.appearance, *matrix, plot);
  const ImTextureRef texture =
      context.textures.heatmap(plot.id, matrix, low, high, context.map, plot.transpose);
  const bool small = std::max(std::abs(low), std::abs(high)) < 0.01F;
  const float bar = (small ? kWideBarWidth : kBarWidth) * context.scale;
  std::optional<HeatmapHit> hit;
  const ImVec2 size(std::max(60.0F, plot.width - bar), plot.height);
  if (ImPlot::BeginPlot(
          plot.title.c_str(), size,
          (matrix->missing > 0 ? 0 : ImPlotFlags_NoLegend) | ImPlotFlags_NoMouseText)) {
    ImPlot::SetupAxes(plot.x_label.c_str(), plot.y_label.c_str(), ImPlotAxisFlags_NoGridLines,
                      ImPlotAxisFlags_NoGridLines | ImPlotAxisFlags_Invert);
    whole_numbers(ImAxis_X1, plot.x_numbers);
    whole_numbers(ImAxis_Y1, plot.y_numbers);
    ImPlot::SetupLegend(ImPlotLocation_South, ImPlotLegendFlags_Outside);
    // Cells are centred on their coordinate.
    const double x0 = plot.first_x - 0.5;
    const double y0 = plot.first_y - 0.5;
    const double x1 = x0 + static_cast<double>(columns);
    const double y1 = y0 + static_cast<double>(rows);
    ImPlot::SetupAxesLimits(x0, x1, y0, y1, ImPlotCond_Once);
    // The y axis runs downwards, and ImPlot puts the first texel at (x of the first, y of the
    // second).
    ImPlot::PlotImage("##values", texture, ImPlotPoint(x0, y1), ImPlotPoint(x1, y0));
    if (plot.marks.size() == rows * columns) draw_marks(plot.marks, columns, x0, y0);
    if (matrix->missing > 0) draw_missing(plot, values, columns, rows);
    if (plot.mark_x || plot.mark_y) {
      mark(plot.mark_x ? *plot.mark_x - 0.5 : x0, plot.mark_y ? *plot.mark_y - 0.5 : y0,
           plot.mark_x ? *plot.mark_x + 0.5 : x1, plot.mark_y ? *plot.mark_y + 0.5 : y1);
    }
    hit = hit_cell(x0, y0, columns, rows);
    if (hit) show_cell_tooltip(plot, values, *hit);
    ImPlot::EndPlot();
  }
  ImGui::SameLine();
  ImPlot::ColormapScale(("##" + plot.id + "-scale").c_str(), static_cast<double>(low),
                        static_cast<double>(high > low ? high : low + 1e-6F),
                        ImVec2(bar - 8.0F * context.scale, plot.height), "%.3g");
  return hit;
}

}  // namespace blockscope
