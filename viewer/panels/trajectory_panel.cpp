// The Trajectory panel: positions x steps. At the step that set it, a token is coloured by its
// confidence. At later steps it is pale. Masks are dots.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "viewer/model/trajectory.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

std::int32_t time_of(const Trajectory& trajectory, const StepRef& step) {
  const auto found = std::ranges::find(trajectory.rows, step.row, &Trajectory::Row::row);
  return found == trajectory.rows.end()
             ? 0
             : static_cast<std::int32_t>(found - trajectory.rows.begin());
}

void draw_controls(PanelContext& context, std::int32_t t, std::int32_t last) {
  PanelStates::Playback& state = context.state.playback;
  if (ImGui::Button(state.playing ? "Pause" : "Play")) state.playing = !state.playing;
  ImGui::SameLine();
  if (ImGui::ArrowButton("##back", ImGuiDir_Left)) context.model.move_step(-1);
  ImGui::SameLine();
  if (ImGui::ArrowButton("##forward", ImGuiDir_Right)) context.model.move_step(1);
  ImGui::SameLine();
  ImGui::SetNextItemWidth(90.0F * context.scale);
  ImGui::SliderFloat("##speed", &state.steps_per_second, 1.0F, 30.0F, "%.0f steps/s");
  ImGui::SameLine();
  ImGui::SetNextItemWidth(-1.0F);
  int wanted = t + 1;
  if (ImGui::SliderInt("##step", &wanted, 1, std::max(1, last + 1),
                       fmt::format("denoising step %d of {}", last + 1).c_str())) {
    context.model.move_step(wanted - 1 - t);
  }
  if (!state.playing || ImGui::GetTime() < state.next_time) return;
  state.next_time = ImGui::GetTime() + 1.0 / static_cast<double>(state.steps_per_second);
  if (t >= last) state.playing = false;
  context.model.move_step(1);
}

struct TrajectoryGrid {
  const Trajectory& trajectory;
  std::int32_t now;
  ImVec2 origin, cell;
  std::int32_t first_row, last_row;  // of the visible part

  /// Upper left corner of a cell; a line of positions is above the first row.
  ImVec2 corner(std::int64_t position, std::int32_t row) const {
    return {origin.x + static_cast<float>(position) * cell.x,
            origin.y + cell.y + static_cast<float>(row) * cell.y};
  }
  float bottom() const { return corner(0, static_cast<std::int32_t>(trajectory.rows.size())).y; }
};

/// The shared crosshair: the current step's row and the selected token's column.
void draw_crosshair(const PanelContext& context, const TrajectoryGrid& grid, float left,
                    float right) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(ImVec2(left, grid.corner(0, grid.now).y),
                      ImVec2(right, grid.corner(0, grid.now + 1).y),
                      ImGui::GetColorU32(ImGuiCol_HeaderActive, 0.45F));
  const std::optional<std::int32_t> token = context.model.selection().token;
  const auto now = static_cast<std::size_t>(grid.now);
  if (!token || now >= grid.trajectory.rows.size()) return;
  const float x = grid.corner(grid.trajectory.rows[now].first_position + *token, 0).x;
  draw->AddRectFilled(ImVec2(x, grid.origin.y), ImVec2(x + grid.cell.x - 1.0F, grid.bottom()),
                      ImGui::GetColorU32(ImGuiCol_HeaderActive, 0.3F));
}

/// A token, coloured by its confidence if this step sets it; a dot for a mask.
void draw_grid_cell(const PanelContext& context, const TrajectoryGrid& grid, std::int64_t position,
                    std::int32_t row) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  Colour colour = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  const ImVec2 low = grid.corner(position, row);
  const ImVec2 high(low.x + grid.cell.x - 1.0F, low.y + grid.cell.y - 1.0F);
  const auto index = grid.trajectory.shown(position, row);
  if (!index) {
    draw->AddCircleFilled(ImVec2((low.x + high.x) / 2, (low.y + high.y) / 2), 1.5F, colour);
    return;
  }
  const Trajectory::Cell& cell = grid.trajectory.cells[static_cast<std::size_t>(*index)];
  if (cell.step == row) {
    const float known = std::isfinite(cell.confidence) ? cell.confidence : 0.0F;
    const Colour back = context.map.at(known, 0.0F, 1.0F);
    draw->AddRectFilled(low, high, back, 2.0F);
    colour = readable_on(back);
  }
  const ImVec4 clip(low.x, low.y, high.x, high.y);
  draw->AddText(nullptr, 0.0F, ImVec2(low.x + 3.0F, low.y), colour, cell.text.c_str(), nullptr,
                0.0F, &clip);
}

void draw_grid(PanelContext& context, const TrajectoryGrid& grid) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const float left = ImGui::GetWindowPos().x;
  const float right = left + ImGui::GetWindowWidth();
  draw_crosshair(context, grid, left, right);
  for (std::int64_t position = 0; position < grid.trajectory.gen_length; ++position) {
    const float x = grid.corner(position, 0).x;
    if (x < left - grid.cell.x || x > right) continue;
    draw->AddText(ImVec2(x + 3.0F, grid.origin.y), ImGui::GetColorU32(ImGuiCol_TextDisabled),
                  fmt::format("{}", position).c_str());
    for (std::int32_t row = grid.first_row; row < grid.last_row; ++row) {
      draw_grid_cell(context, grid, position, row);
    }
  }
  std::int32_t block = -1;
  for (const Trajectory::Row& row : grid.trajectory.rows) {
    if (row.block == block) continue;
    block = row.block;
    const float x = grid.corner(std::max(0, row.first_position), 0).x - 1.0F;
    draw->AddLine(ImVec2(x, grid.origin.y), ImVec2(x, grid.bottom()),
                  ImGui::GetColorU32(ImGuiCol_SeparatorActive), 1.5F);
  }
}

void hover_and_click_grid(PanelContext& context, const TrajectoryGrid& grid) {
  if (!ImGui::IsItemHovered()) return;
  const ImVec2 mouse = ImGui::GetMousePos();
  const auto position =
      static_cast<std::int64_t>(std::floor((mouse.x - grid.origin.x) / grid.cell.x));
  const auto row =
      static_cast<std::int32_t>(std::floor((mouse.y - grid.origin.y - grid.cell.y) / grid.cell.y));
  if (position < 0 || position >= grid.trajectory.gen_length || row < 0 ||
      row >= static_cast<std::int32_t>(grid.trajectory.rows.size())) {
    return;
  }
  const Trajectory::Row& at = grid.trajectory.rows[static_cast<std::size_t>(row)];
  Selection selection = context.model.selection();
  selection.token = static_cast<std::int32_t>(position) - at.first_position;
  context.model.select(selection);
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) context.model.select_row(at.row);
  const auto index = grid.trajectory.shown(position, row);
  if (index) {
    const Trajectory::Cell& cell = grid.trajectory.cells[static_cast<std::size_t>(*index)];
    ImGui::SetTooltip(
        "position %lld, block %d, step %d of the block\n\"%s\" set at step %d, "
        "confidence %.4f",
        static_cast<long long>(position), at.block, at.step_in_block, cell.text.c_str(), cell.step,
        static_cast<double>(cell.confidence));
  } else {
    ImGui::SetTooltip("position %lld, block %d, step %d of the block\nmask",
                      static_cast<long long>(position), at.block, at.step_in_block);
  }
}

void draw_trajectory_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.step() == nullptr) {
    return explain_missing(model.overview() == nullptr ? "No trace is open."
                                                       : "The trace holds no denoising step yet.");
  }
  const auto data = request_trajectory(model);
  if (!ready_or_explain(data)) return;
  const Trajectory& trajectory = *data.value;
  const std::int32_t t = time_of(trajectory, *model.step());
  draw_controls(context, t, static_cast<std::int32_t>(trajectory.rows.size()) - 1);

  const float text_height = ImGui::GetTextLineHeight();
  // Always with a scrollbar: one that appears and disappears would change the wrapping, and so
  // itself.
  ImGui::BeginChild("text", ImVec2(0.0F, text_height * 4.4F), ImGuiChildFlags_Borders,
                    ImGuiWindowFlags_AlwaysVerticalScrollbar);
  std::size_t tail = trajectory.prompt.size() > 90 ? trajectory.prompt.size() - 90 : 0;
  while (tail > 0 && (static_cast<unsigned char>(trajectory.prompt[tail]) & 0xC0U) == 0x80U) --tail;
  ImGui::PushTextWrapPos(0.0F);
  ImGui::TextDisabled("%s%s", tail > 0 ? "..." : "",
                      readable_piece(trajectory.prompt.substr(tail)).c_str());
  ImGui::TextUnformatted(trajectory.text_after(t).c_str());
  ImGui::PopTextWrapPos();
  ImGui::EndChild();

  ImGui::BeginChild("grid", ImVec2(0, 0), ImGuiChildFlags_None,
                    ImGuiWindowFlags_HorizontalScrollbar);
  const ImVec2 cell(64.0F * context.scale, text_height + 3.0F * context.scale);
  const auto rows = static_cast<std::int32_t>(trajectory.rows.size());
  if (!ImGui::IsWindowHovered()) {  // keep the selected step visible
    const float middle = static_cast<float>(t + 1) * cell.y - ImGui::GetWindowHeight() / 2;
    ImGui::SetScrollY(std::clamp(middle, 0.0F, ImGui::GetScrollMaxY()));
  }
  const ImVec2 origin = ImGui::GetCursorScreenPos();
  ImGui::InvisibleButton("cells",
                         ImVec2(std::max(1.0F, cell.x * static_cast<float>(trajectory.gen_length)),
                                cell.y * static_cast<float>(rows + 1)));
  const float above = ImGui::GetScrollY() / cell.y;
  const TrajectoryGrid grid{
      trajectory,
      t,
      origin,
      cell,
      std::clamp(static_cast<std::int32_t>(above) - 1, 0, rows),
      std::clamp(static_cast<std::int32_t>(above + ImGui::GetWindowHeight() / cell.y) + 1, 0,
                 rows)};
  draw_grid(context, grid);
  hover_and_click_grid(context, grid);
  ImGui::EndChild();
}

std::optional<CsvTable> trajectory_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr) return std::nullopt;
  const auto data = request_trajectory(context.model);
  return data.value ? std::optional(trajectory_table(*data.value)) : std::nullopt;
}

}  // namespace

Panel trajectory_panel() {
  return {.name = "Trajectory",
          .draw = draw_trajectory_panel,
          .table = trajectory_panel_table,
          .place = PanelPlace::top_left,
          .part = SelectionPart::step};
}

}  // namespace blockscope
