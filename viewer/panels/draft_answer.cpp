// The answer's text in the Draft panel. A token's background colour shows whether it was drafted,
// or is the target's own. Only visible lines are drawn.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <string>

#include "decode_record/read/end_of_text.h"
#include "viewer/panels/draft_parts.h"

namespace blockscope {
namespace {

struct Area {
  const ShownRounds& rounds;
  const TokenLines& lines;
  ImVec2 origin;
  float gutter, line_height;
};

std::string label_of(const ShownRounds& rounds, std::size_t position) {
  const std::int32_t token = rounds.answer[position].token;
  return token < 0 ? kMaskSymbol : end_of_text_label(rounds.runs[position], rounds.text(token));
}

void draw_token(const Area& area, std::size_t position, float y, std::size_t selected) {
  const ShownRounds::Told& told = area.rounds.answer[position];
  const float left = area.origin.x + area.gutter + area.lines.left[position];
  const ImVec2 low(left, y);
  const ImVec2 high(left + area.lines.wide[position], y + area.line_height - 2.0F);
  ImDrawList* draw = ImGui::GetWindowDrawList();
  Colour text = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  if (told.token >= 0) {
    const Colour back = told.drafted_at == 0
                            ? kTargetColour
                            : colour_of_position(told.drafted_at, area.rounds.block_length);
    draw->AddRectFilled(low, high, back, 2.0F);
    text = readable_on(back);
  }
  const float inset = (area.line_height - 2.0F - ImGui::GetTextLineHeight()) / 2;
  const std::string label = label_of(area.rounds, position);
  draw->AddText(ImVec2(low.x, low.y + inset), text, without_spaces(label.c_str()));
  if (told.round >= 0 && static_cast<std::size_t>(told.round) == selected) {
    draw->AddRect(ImVec2(low.x - 1.0F, low.y - 1.0F), ImVec2(high.x + 1.0F, high.y + 1.0F),
                  ImGui::GetColorU32(ImGuiCol_Text), 2.0F, 0, 1.5F);
  }
}

void draw_line(const Area& area, std::size_t line, std::size_t selected) {
  const float y = area.origin.y + static_cast<float>(line) * area.line_height;
  const std::string number = fmt::format("{}", area.lines.first[line]);
  const float right = area.origin.x + area.gutter - ImGui::GetFontSize() * 0.7F;
  const float inset = (area.line_height - 2.0F - ImGui::GetTextLineHeight()) / 2;
  ImGui::GetWindowDrawList()->AddText(
      ImVec2(right - ImGui::CalcTextSize(number.c_str()).x, y + inset),
      ImGui::GetColorU32(ImGuiCol_TextDisabled), number.c_str());
  for (std::size_t i = area.lines.first[line]; i < area.lines.first[line + 1]; ++i) {
    draw_token(area, i, y, selected);
  }
}

void hover_and_click(PanelContext& context, const Area& area) {
  if (!ImGui::IsItemHovered()) return;
  const ImVec2 mouse = ImGui::GetMousePos();
  const std::int64_t position = area.lines.token_at(
      ImVec2(mouse.x - area.origin.x - area.gutter, mouse.y - area.origin.y), area.line_height);
  if (position < 0) return;
  const auto at = static_cast<std::size_t>(position);
  const std::int32_t round = area.rounds.answer[at].round;
  if (round >= 0 && ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    context.model.select_row(area.rounds.rounds[static_cast<std::size_t>(round)].row);
  }
  ImGui::SetTooltip("%s", describe_told(area.rounds, at).c_str());
}

}  // namespace

Colour colour_of_position(std::int32_t position, std::int32_t block_length) {
  constexpr std::array<int, 3> kFirst = {0xBF, 0xE9, 0xDB};
  constexpr std::array<int, 3> kLast = {0x00, 0x66, 0x4A};
  const std::int32_t steps = std::max(1, block_length - 2);
  const int at = std::clamp(position - 1, 0, steps);
  Colour colour = 0xFF000000U;
  for (std::size_t i = 0; i < 3; ++i) {
    const int channel = kFirst[i] + (kLast[i] - kFirst[i]) * at / steps;
    colour |= static_cast<Colour>(channel) << (8U * i);
  }
  return colour;
}

void draw_draft_answer(PanelContext& context, const std::shared_ptr<const ShownRounds>& rounds) {
  DraftState& state = context.state.of<DraftState>();
  // Always with a scrollbar: one that appears and disappears would change the wrapping, and so
  // itself.
  ImGui::BeginChild("answer", ImVec2(0, 0), ImGuiChildFlags_None,
                    ImGuiWindowFlags_AlwaysVerticalScrollbar);
  const float gutter = ImGui::CalcTextSize("000000").x;
  const float line_height = ImGui::GetTextLineHeight() * 1.35F;
  lay_out(state.lines, rounds, std::max(60.0F, ImGui::GetContentRegionAvail().x - gutter - 2.0F),
          {rounds->answer.size(), [&](std::size_t i) { return label_of(*rounds, i); },
           rounds->has_pieces});
  const std::size_t selected = rounds->round_of_row(context.model.step()->row);
  if (selected < rounds->rounds.size()) {
    const auto first = std::max(0, rounds->rounds[selected].first_position + 1);
    follow_selection(context, state.lines.line_of(static_cast<std::size_t>(first)), line_height,
                     0.0F);
  }
  const Area area{*rounds, state.lines, ImGui::GetCursorScreenPos(), gutter, line_height};
  const std::size_t count = state.lines.count();
  ImGui::InvisibleButton("tokens", ImVec2(gutter + state.lines.width,
                                          std::max(1.0F, line_height * static_cast<float>(count))));
  state.drawn = seen_lines(count, line_height);
  for (std::size_t line = state.drawn.first; line < state.drawn.last; ++line) {
    draw_line(area, line, selected);
  }
  hover_and_click(context, area);
  ImGui::EndChild();
}

}  // namespace blockscope
