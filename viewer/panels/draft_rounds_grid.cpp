// Rounds as lines, positions of the block as columns. The drafted tokens are above. The target's
// own token is below the first rejected one, or after the drafted ones if all were accepted. Only
// visible rounds are drawn.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "viewer/panels/draft_parts.h"

namespace blockscope {
namespace {

struct RoundsGrid {
  const ShownRounds& rounds;
  ImVec2 origin;  ///< place of the first round's certain token, after scrolling
  ImVec2 corner;  ///< upper left corner of the visible part
  ImVec2 size;    ///< of the visible part
  float gutter, header;
  ImVec2 cell;  ///< size of one token; a round has two rows of tokens
  float pitch;  ///< distance from one round to the next
  SeenLines seen;

  float left(std::int32_t position) const {
    return origin.x + static_cast<float>(position) * cell.x;
  }
  float top(std::size_t round) const { return origin.y + static_cast<float>(round) * pitch; }
};

/// The text with a dot for each space, so that the cell shows the spaces.
std::string label_of(const ShownRounds& rounds, std::int32_t token) {
  std::string label;
  for (const char c : rounds.text(token)) {
    if (c == ' ') {
      label += "\u00B7";
    } else {
      label += c;
    }
  }
  return label;
}

/// The text, or its beginning and an ellipsis if it is wider than `wide`.
std::string fitted(std::string label, float wide) {
  if (ImGui::CalcTextSize(label.c_str()).x <= wide) return label;
  const auto inside_letter = [&] {  // the last byte belongs to a letter of several bytes
    return !label.empty() && (static_cast<unsigned char>(label.back()) & 0xC0U) == 0x80U;
  };
  do {
    while (inside_letter()) label.pop_back();
    if (!label.empty()) label.pop_back();
  } while (!label.empty() && ImGui::CalcTextSize((label + "\u2026").c_str()).x > wide);
  return label + "\u2026";
}

/// `raised`: pixels above the cell's middle.
void draw_label(const RoundsGrid& grid, ImVec2 low, Colour colour, const std::string& token,
                float raised = 0.0F) {
  const std::string label = fitted(token, grid.cell.x - 6.0F);
  const ImVec2 high(low.x + grid.cell.x - 2.0F, low.y + grid.cell.y - 1.0F);
  const float wide = ImGui::CalcTextSize(label.c_str()).x;
  const float before = std::max(2.0F, (grid.cell.x - 2.0F - wide) / 2);
  const ImVec4 clip(low.x, low.y, high.x, high.y);
  const float above = (grid.cell.y - ImGui::GetTextLineHeight()) / 2 - raised;
  ImGui::GetWindowDrawList()->AddText(nullptr, 0.0F, ImVec2(low.x + before, low.y + above), colour,
                                      label.c_str(), nullptr, 0.0F, &clip);
}

/// The target's own token: an outline without a fill.
void draw_target(const RoundsGrid& grid, ImVec2 low, std::int32_t token) {
  if (token < 0) return;
  const ImVec2 high(low.x + grid.cell.x - 2.0F, low.y + grid.cell.y - 1.0F);
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(low, high, (kTargetColour & 0x00FFFFFFU) | 0x30000000U, 3.0F);
  draw->AddRect(low, high, kTargetColour, 3.0F);
  draw_label(grid, low, ImGui::GetColorU32(ImGuiCol_Text), label_of(grid.rounds, token));
}

Colour faded(Colour colour) { return (colour & 0x00FFFFFFU) | 0x58000000U; }

struct Look {
  Colour fill = 0, text = 0;
};

Look look_of(const PanelContext& context, const ShownRounds::Cell& cell, DraftOutcome outcome) {
  const DraftState& state = context.state.of<DraftState>();
  const DraftColourInfo& info = info_of(state.colour);
  if (info.scale == DraftColourInfo::Scale::outcome) {
    switch (outcome) {
      case DraftOutcome::accepted:
        return {kAcceptedColour, readable_on(kAcceptedColour)};
      case DraftOutcome::rejected:
        return {kRejectedColour, readable_on(kRejectedColour)};
      case DraftOutcome::behind:
        return {behind_colour(), ImGui::GetColorU32(ImGuiCol_Text, 0.62F)};
    }
  }
  const float value = value_of(cell, state.colour);
  Colour fill = kNoValueColour;
  if (!std::isnan(value)) {
    fill = colour_of_value(value, info.scale, state.values.largest, context.map);
  } else if (of_targets_token(state.colour) && lacks_token(cell)) {
    fill = kLackingColour;
  }
  return {fill, readable_on(fill)};
}

void draw_drafted(const PanelContext& context, const RoundsGrid& grid, std::size_t index,
                  std::int32_t position) {
  const ShownRounds::Round& round = grid.rounds.rounds[index];
  const ShownRounds::Cell& cell = grid.rounds.cell(index, position);
  const DraftOutcome outcome = outcome_of(round, position);
  Look look = look_of(context, cell, outcome);
  const ImVec2 low(grid.left(position), grid.top(index));
  const ImVec2 high(low.x + grid.cell.x - 2.0F, low.y + grid.cell.y - 1.0F);
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const bool values = context.state.of<DraftState>().colour != DraftColour::outcome;
  if (values && outcome == DraftOutcome::behind) {
    // Only a bar at the bottom, because this token did not decide anything.
    draw->AddRectFilled(low, high, behind_colour(), 3.0F);
    draw->AddRectFilled(ImVec2(low.x, high.y - grid.cell.y * 0.2F), high, look.fill, 3.0F);
    look.text = ImGui::GetColorU32(ImGuiCol_Text, 0.62F);
  } else if (round.first_position + position >= grid.rounds.gen_length) {
    draw->AddRectFilled(low, high, faded(look.fill), 3.0F);  // beyond the answer's length
    look.text = ImGui::GetColorU32(ImGuiCol_Text, 0.62F);
  } else {
    draw->AddRectFilled(low, high, look.fill, 3.0F);
  }
  if (values && outcome == DraftOutcome::rejected) {
    draw->AddRect(low, high, kRejectedColour, 3.0F, 0, 2.0F * context.scale);
  }
  draw_label(grid, low, look.text, label_of(grid.rounds, cell.drafted),
             values && outcome == DraftOutcome::behind ? grid.cell.y * 0.1F : 0.0F);
}

void draw_round(const PanelContext& context, const RoundsGrid& grid, std::size_t index) {
  const ShownRounds::Round& round = grid.rounds.rounds[index];
  const std::int32_t block = grid.rounds.block_length;
  const ImVec2 first(grid.left(0), grid.top(index));
  draw_target(grid, first, round.certain);
  for (std::int32_t p = 1; p <= round.drafted; ++p) {
    if (grid.left(p + 1) < grid.corner.x || grid.left(p) > grid.corner.x + grid.size.x) continue;
    draw_drafted(context, grid, index, p);
  }
  draw_target(grid, ImVec2(grid.left(round.accepted + 1), first.y + grid.cell.y), round.next);
  const auto& token = context.model.selection().token;
  if (token && round.row == context.model.step()->row && *token < block) {  // the shared crosshair
    const ImVec2 low(grid.left(*token) - 1.0F, first.y - 1.0F);
    ImGui::GetWindowDrawList()->AddRect(
        low, ImVec2(low.x + grid.cell.x, low.y + grid.cell.y + 1.0F),
        ImGui::GetColorU32(ImGuiCol_Text), 3.0F, 0, 1.5F * context.scale);
  }
}

/// Number and acceptance of each round to the left of the scrolled part, positions above it.
void draw_margins(const PanelContext& context, const RoundsGrid& grid) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const Colour back = ImGui::GetColorU32(ImGuiCol_WindowBg);
  const Colour faint = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  const float right = grid.corner.x + grid.gutter;
  draw->AddRectFilled(grid.corner, ImVec2(right, grid.corner.y + grid.size.y), back);
  for (std::size_t index = grid.seen.first; index < grid.seen.last; ++index) {
    const ShownRounds::Round& round = grid.rounds.rounds[index];
    const bool here = round.row == context.model.step()->row;
    const ImVec2 at(grid.corner.x, grid.top(index));
    if (here) {
      draw->AddRectFilled(ImVec2(at.x, at.y - 2.0F), ImVec2(right, at.y + grid.pitch - 3.0F),
                          ImGui::GetColorU32(ImGuiCol_HeaderActive, 0.35F));
    }
    const float above = (grid.cell.y - ImGui::GetTextLineHeight()) / 2;
    draw->AddText(ImVec2(at.x + 4.0F, at.y + above),
                  here ? ImGui::GetColorU32(ImGuiCol_Text) : faint,
                  fmt::format("{}", index).c_str());
    const std::string accepted = fmt::format("{}/{}", round.accepted, round.drafted);
    const float wide = ImGui::CalcTextSize(accepted.c_str()).x;
    draw->AddText(ImVec2(right - wide - 8.0F * context.scale, at.y + above),
                  ImGui::GetColorU32(ImGuiCol_Text), accepted.c_str());
  }
  draw->AddRectFilled(grid.corner, ImVec2(grid.corner.x + grid.size.x, grid.corner.y + grid.header),
                      back);
  for (std::int32_t p = 0; p <= grid.rounds.block_length; ++p) {
    const std::string label = p < grid.rounds.block_length ? fmt::format("{}", p) : "next";
    const float wide = ImGui::CalcTextSize(label.c_str()).x;
    const float x = grid.left(p) + (grid.cell.x - 2.0F - wide) / 2;
    if (x < right) continue;
    draw->AddText(ImVec2(x, grid.corner.y), faint, label.c_str());
  }
  draw->AddText(ImVec2(grid.corner.x + 4.0F, grid.corner.y), faint, "round");
}

void hover_and_click_rounds(PanelContext& context, const RoundsGrid& grid) {
  if (!ImGui::IsItemHovered()) return;
  const ImVec2 mouse = ImGui::GetMousePos();
  if (mouse.y < grid.corner.y + grid.header) return;
  const float line = std::floor((mouse.y - grid.origin.y) / grid.pitch);
  if (line < 0.0F || line >= static_cast<float>(grid.rounds.rounds.size())) return;
  const auto index = static_cast<std::size_t>(line);
  const ShownRounds::Round& round = grid.rounds.rounds[index];
  const bool in_margin = mouse.x < grid.corner.x + grid.gutter;
  const auto position =
      static_cast<std::int32_t>(std::floor((mouse.x - grid.origin.x) / grid.cell.x));
  if (round.row >= 0 && ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    context.model.select_row(round.row);
  }
  if (in_margin || position < 0 || position > grid.rounds.block_length) return;
  // This cell is empty.
  if (position > round.drafted && position != round.accepted + 1) return;
  if (position < grid.rounds.block_length && round.row >= 0) {
    Selection selection = context.model.selection();
    selection.token = position;
    context.model.select(selection);
  }
  ImGui::SetTooltip("%s", describe(grid.rounds, index, position).c_str());
}

}  // namespace

void draw_draft_rounds(PanelContext& context, const ShownRounds& rounds) {
  // Always with a scrollbar: one that appears and disappears would change the widths, and so
  // itself.
  ImGui::BeginChild(
      "rounds", ImVec2(0, 0), ImGuiChildFlags_None,
      ImGuiWindowFlags_AlwaysVerticalScrollbar | ImGuiWindowFlags_HorizontalScrollbar);
  const float scale = context.scale;
  const float text = ImGui::GetTextLineHeight();
  const float gutter = ImGui::CalcTextSize("00000 00/00").x + 16.0F * scale;
  const auto columns = static_cast<float>(rounds.block_length + 1);
  const float room = ImGui::GetContentRegionAvail().x - gutter;
  const ImVec2 cell(std::clamp(std::floor(room / columns), 52.0F * scale, 96.0F * scale),
                    text + 4.0F * scale);
  const float pitch = 2.0F * cell.y + 5.0F * scale;
  const float header = text + 4.0F * scale;
  const std::size_t here = rounds.round_of_row(context.model.step()->row);
  if (here < rounds.rounds.size()) follow_selection(context, here, pitch, header);
  const ImVec2 start = ImGui::GetCursorScreenPos();
  ImGui::InvisibleButton(
      "cells",
      ImVec2(gutter + cell.x * columns,
             header + pitch * static_cast<float>(std::max<std::size_t>(1, rounds.rounds.size()))));
  const RoundsGrid grid{rounds,
                        ImVec2(start.x + gutter, start.y + header),
                        ImGui::GetWindowPos(),
                        ImGui::GetWindowSize(),
                        gutter,
                        header,
                        cell,
                        pitch,
                        seen_lines(rounds.rounds.size(), pitch)};
  context.state.of<DraftState>().drawn = grid.seen;
  if (here >= grid.seen.first && here < grid.seen.last) {
    ImGui::GetWindowDrawList()->AddRectFilled(
        ImVec2(grid.corner.x, grid.top(here) - 2.0F),
        ImVec2(grid.corner.x + grid.size.x, grid.top(here) + pitch - 3.0F),
        ImGui::GetColorU32(ImGuiCol_HeaderActive, 0.35F));
  }
  for (std::size_t index = grid.seen.first; index < grid.seen.last; ++index) {
    draw_round(context, grid, index);
  }
  draw_margins(context, grid);
  hover_and_click_rounds(context, grid);
  ImGui::EndChild();
}

}  // namespace blockscope
