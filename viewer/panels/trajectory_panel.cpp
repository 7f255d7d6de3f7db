// The Trajectory panel: positions x steps. At the step that set it, a token is coloured by its
// confidence. At later steps it is pale. Masks are dots. A run of end-of-text tokens is one cell.
// A token that another one replaced has a frame at that step, a moved one an underline.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/text.h"
#include "decode_record/read/end_of_text.h"
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

/// What the grid was scrolled to.
struct TrajectoryState {
  std::int64_t row = -1;
  std::optional<std::int32_t> token;
};

constexpr float kRunCells = 2.4F;  // width of a run's column, in cells

struct TrajectoryGrid {
  const Trajectory& trajectory;
  std::int32_t now;
  ImVec2 origin, cell;
  std::int32_t first_row, last_row;  // of the visible part

  float width_of(const Trajectory::Column& column) const {
    return column.count > 1 ? kRunCells * cell.x : cell.x;
  }
  float left_of(const Trajectory::Column& column) const {
    const auto index = static_cast<float>(&column - trajectory.columns.data());
    return origin.x +
           (index + static_cast<float>(column.runs_before) * (kRunCells - 1.0F)) * cell.x;
  }
  float width() const {
    if (trajectory.columns.empty()) return 0.0F;
    const Trajectory::Column& last = trajectory.columns.back();
    return left_of(last) + width_of(last) - origin.x;
  }
  /// A line of positions is above the first row.
  float top_of(std::int32_t row) const {
    return origin.y + cell.y + static_cast<float>(row) * cell.y;
  }
  float bottom() const { return top_of(static_cast<std::int32_t>(trajectory.rows.size())); }
  /// The first column that ends after x; columns.size() if there is none.
  std::size_t column_at(float x) const {
    const auto after = std::ranges::partition_point(
        trajectory.columns,
        [&](const Trajectory::Column& column) { return left_of(column) + width_of(column) <= x; });
    return static_cast<std::size_t>(after - trajectory.columns.begin());
  }
};

/// The shared crosshair: the current step's row and the selected token's column.
void draw_crosshair(const PanelContext& context, const TrajectoryGrid& grid, float left,
                    float right) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(ImVec2(left, grid.top_of(grid.now)), ImVec2(right, grid.top_of(grid.now + 1)),
                      ImGui::GetColorU32(ImGuiCol_HeaderActive, 0.45F));
  const std::optional<std::int32_t> token = context.model.selection().token;
  const auto now = static_cast<std::size_t>(grid.now);
  if (!token || now >= grid.trajectory.rows.size()) return;
  const std::int64_t position = grid.trajectory.rows[now].first_position + *token;
  if (position < 0 || position >= grid.trajectory.gen_length) return;
  const Trajectory::Column& column = grid.trajectory.column_of(position);
  const float x = grid.left_of(column);
  draw->AddRectFilled(ImVec2(x, grid.origin.y),
                      ImVec2(x + grid.width_of(column) - 1.0F, grid.bottom()),
                      ImGui::GetColorU32(ImGuiCol_HeaderActive, 0.3F));
}

/// What a column holds after a step.
struct ColumnState {
  std::int64_t decided = 0;                 ///< positions with a token
  std::int64_t now = 0;                     ///< of these, those that this step set
  float confidence = 0.0F;                  ///< mean over these
  const Trajectory::Cell* first = nullptr;  ///< of the decided ones
};

ColumnState state_of(const Trajectory& trajectory, const Trajectory::Column& column,
                     std::int32_t row) {
  ColumnState state;
  float sum = 0.0F;
  for (std::int64_t i = 0; i < column.count; ++i) {
    const auto index = trajectory.shown(column.position + i, row);
    if (!index) continue;
    const Trajectory::Cell& cell = trajectory.cells[static_cast<std::size_t>(*index)];
    if (state.first == nullptr) state.first = &cell;
    state.decided += 1;
    if (cell.step != row) continue;
    state.now += 1;
    sum += std::isfinite(cell.confidence) ? cell.confidence : 0.0F;
  }
  if (state.now > 0) state.confidence = sum / static_cast<float>(state.now);
  return state;
}

/// A token, or the mark of a run, coloured by the confidence if this step sets it; a dot for masks.
void draw_grid_cell(const PanelContext& context, const TrajectoryGrid& grid,
                    const Trajectory::Column& column, std::int32_t row) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  Colour colour = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  const ImVec2 low(grid.left_of(column), grid.top_of(row));
  const ImVec2 high(low.x + grid.width_of(column) - 1.0F, low.y + grid.cell.y - 1.0F);
  const ColumnState state = state_of(grid.trajectory, column, row);
  if (state.first == nullptr) {
    draw->AddCircleFilled(ImVec2((low.x + high.x) / 2, (low.y + high.y) / 2), 1.5F, colour);
    return;
  }
  if (state.now > 0) {
    const Colour back = context.map.at(state.confidence, 0.0F, 1.0F);
    draw->AddRectFilled(low, high, back, 2.0F);
    colour = readable_on(back);
  }
  if (state.now > 0 && state.first->kind == ChangeKind::edited) {
    draw->AddRect(low, high, ImGui::GetColorU32(ImGuiCol_PlotHistogram), 2.0F, 0, 2.0F);
  } else if (state.now > 0 && state.first->kind == ChangeKind::moved) {
    draw->AddLine(ImVec2(low.x, high.y), high, ImGui::GetColorU32(ImGuiCol_PlotLines), 2.0F);
  }
  const std::string text = state.decided > 1
                               ? end_of_text_mark(static_cast<std::size_t>(state.decided))
                               : state.first->text;
  const ImVec4 clip(low.x, low.y, high.x, high.y);
  draw->AddText(nullptr, 0.0F, ImVec2(low.x + 3.0F, low.y), colour, text.c_str(), nullptr, 0.0F,
                &clip);
}

void draw_grid(PanelContext& context, const TrajectoryGrid& grid) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const float left = ImGui::GetWindowPos().x;
  const float right = left + ImGui::GetWindowWidth();
  const std::vector<Trajectory::Column>& columns = grid.trajectory.columns;
  draw_crosshair(context, grid, left, right);
  for (std::size_t i = grid.column_at(left); i < columns.size(); ++i) {
    const Trajectory::Column& column = columns[i];
    const float x = grid.left_of(column);
    if (x > right) break;
    const std::int64_t last = column.position + column.count - 1;
    const std::string name = column.count > 1 ? fmt::format("{} to {}", column.position, last)
                                              : fmt::format("{}", column.position);
    draw->AddText(ImVec2(x + 3.0F, grid.origin.y), ImGui::GetColorU32(ImGuiCol_TextDisabled),
                  name.c_str());
    for (std::int32_t row = grid.first_row; row < grid.last_row; ++row) {
      draw_grid_cell(context, grid, column, row);
    }
  }
  std::int32_t block = -1;
  for (const Trajectory::Row& row : grid.trajectory.rows) {
    if (row.block == block) continue;
    block = row.block;
    const std::int64_t start = std::max(0, row.first_position);
    if (start >= grid.trajectory.gen_length) continue;
    const float x = grid.left_of(grid.trajectory.column_of(start)) - 1.0F;
    draw->AddLine(ImVec2(x, grid.origin.y), ImVec2(x, grid.bottom()),
                  ImGui::GetColorU32(ImGuiCol_SeparatorActive), 1.5F);
  }
}

/// What this step replaced at a position.
std::string edit_text(const Trajectory& trajectory, std::int64_t position, std::int32_t row) {
  const auto& cells = trajectory.cells_of_position[static_cast<std::size_t>(position)];
  for (const std::int32_t index : cells) {
    const Trajectory::Cell& cell = trajectory.cells[static_cast<std::size_t>(index)];
    if (cell.step != row || cell.kind == ChangeKind::decided) continue;
    const std::string was = cell.before.empty() ? "a mask" : fmt::format("\"{}\"", cell.before);
    switch (cell.kind) {
      case ChangeKind::edited:
        return fmt::format("\nreplaced {}", was);
      case ChangeKind::taken_back:
        return fmt::format("\n{} was taken back", was);
      default:
        return fmt::format("\nmoved here; the position held {}", was);
    }
  }
  return "";
}

std::string moves_text(const Trajectory::Row& row) {
  if (row.inserted + row.deleted == 0) return "";
  return fmt::format("\n{} inserted, {} deleted at this step", plural(row.inserted, "position"),
                     plural(row.deleted, "position"));
}

void cell_tooltip(const Trajectory& trajectory, const Trajectory::Column& column,
                  std::int32_t row) {
  const Trajectory::Row& at = trajectory.rows[static_cast<std::size_t>(row)];
  const ColumnState state = state_of(trajectory, column, row);
  const std::string step =
      fmt::format("block {}, step {} of the block{}", at.block, at.step_in_block, moves_text(at));
  const std::string before = edit_text(trajectory, column.position, row);
  if (column.count > 1) {
    const std::string now =
        state.now == 0 ? ""
                       : fmt::format("\n{} of them set at this step, mean confidence {:.4f}",
                                     state.now, state.confidence);
    ImGui::SetTooltip("positions %lld to %lld, %s\nend of text: %lld of %lld decided%s",
                      static_cast<long long>(column.position),
                      static_cast<long long>(column.position + column.count - 1), step.c_str(),
                      static_cast<long long>(state.decided), static_cast<long long>(column.count),
                      now.c_str());
  } else if (state.first != nullptr) {
    ImGui::SetTooltip("position %lld, %s\n\"%s\" set at step %d, confidence %.4f%s",
                      static_cast<long long>(column.position), step.c_str(),
                      state.first->text.c_str(), state.first->step,
                      static_cast<double>(state.first->confidence), before.c_str());
  } else {
    ImGui::SetTooltip("position %lld, %s\nmask%s", static_cast<long long>(column.position),
                      step.c_str(), before.c_str());
  }
}

void hover_and_click_grid(PanelContext& context, const TrajectoryGrid& grid) {
  if (!ImGui::IsItemHovered()) return;
  const ImVec2 mouse = ImGui::GetMousePos();
  const std::size_t index = grid.column_at(mouse.x);
  const auto row =
      static_cast<std::int32_t>(std::floor((mouse.y - grid.origin.y - grid.cell.y) / grid.cell.y));
  if (mouse.x < grid.origin.x || index >= grid.trajectory.columns.size() || row < 0 ||
      row >= static_cast<std::int32_t>(grid.trajectory.rows.size())) {
    return;
  }
  const Trajectory::Column& column = grid.trajectory.columns[index];
  const Trajectory::Row& at = grid.trajectory.rows[static_cast<std::size_t>(row)];
  Selection selection = context.model.selection();
  selection.token = static_cast<std::int32_t>(column.position) - at.first_position;
  context.model.select(selection);
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) context.model.select_row(at.row);
  cell_tooltip(grid.trajectory, column, row);
}

/// When the selection changes elsewhere, scrolls to the selected token's column, or to the block.
void follow_columns(PanelContext& context, const TrajectoryGrid& grid) {
  TrajectoryState& state = context.state.of<TrajectoryState>();
  const std::int64_t row = context.model.step()->row;
  const std::optional<std::int32_t> token = context.model.selection().token;
  if (state.row == row && state.token == token) return;
  state.row = row;
  state.token = token;
  const std::int64_t positions = grid.trajectory.gen_length;
  if (ImGui::IsWindowHovered() || positions == 0) return;
  const std::int64_t block =
      grid.trajectory.rows[static_cast<std::size_t>(grid.now)].first_position;
  const std::int64_t length = context.model.overview()->info.meta.block_length;
  const auto at = [&](std::int64_t position) -> const Trajectory::Column& {
    return grid.trajectory.column_of(std::clamp<std::int64_t>(position, 0, positions - 1));
  };
  const Trajectory::Column& first = at(token ? block + *token : block);
  const Trajectory::Column& last = at(token ? block + *token : block + length - 1);
  const float left = grid.left_of(first) - grid.origin.x;
  const float right = grid.left_of(last) + grid.width_of(last) - grid.origin.x;
  const float seen = ImGui::GetWindowWidth() - ImGui::GetStyle().ScrollbarSize;
  const float scroll = ImGui::GetScrollX();
  if (left < scroll || right - left > seen) {
    ImGui::SetScrollX(left);
  } else if (right > scroll + seen) {
    ImGui::SetScrollX(right - seen);
  }
}

/// The steps of a continuous model's blocks, which hold no tokens.
void draw_steps(PanelContext& context, const Trajectory& trajectory, std::int32_t now) {
  ImGui::TextDisabled("The model is continuous, so the trace has no tokens.");
  ImGui::BeginChild("steps");
  for (std::size_t t = 0; t < trajectory.rows.size(); ++t) {
    const Trajectory::Row& row = trajectory.rows[t];
    const std::string name =
        fmt::format("block {}, position {}, step {}, timestep {:g}##{}", row.block,
                    row.first_position, row.step_in_block, row.timestep, t);
    if (ImGui::Selectable(name.c_str(), std::cmp_equal(t, now))) context.model.select_row(row.row);
  }
  ImGui::EndChild();
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
  if (trajectory.continuous) return draw_steps(context, trajectory, t);

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
  const float above = ImGui::GetScrollY() / cell.y;
  const TrajectoryGrid grid{
      trajectory,
      t,
      ImGui::GetCursorScreenPos(),
      cell,
      std::clamp(static_cast<std::int32_t>(above) - 1, 0, rows),
      std::clamp(static_cast<std::int32_t>(above + ImGui::GetWindowHeight() / cell.y) + 1, 0,
                 rows)};
  ImGui::InvisibleButton(
      "cells", ImVec2(std::max(1.0F, grid.width()), cell.y * static_cast<float>(rows + 1)));
  follow_columns(context, grid);
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
