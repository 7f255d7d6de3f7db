#include "viewer/panels/token_lines.h"

#include <algorithm>
#include <cmath>

namespace blockscope {
namespace {

constexpr const char* kLineEnd = "\u23CE";  // as in readable_piece()

}  // namespace

std::size_t TokenLines::line_of(std::size_t token) const {
  const auto after = std::ranges::upper_bound(first, token);
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, after - first.begin() - 1));
}

std::int64_t TokenLines::token_at(ImVec2 place, float line_height) const {
  const float line = std::floor(place.y / line_height);
  if (line < 0.0F || line >= static_cast<float>(count())) return -1;
  const auto row = static_cast<std::size_t>(line);
  for (std::size_t i = first[row]; i < first[row + 1]; ++i) {
    if (place.x >= left[i] && place.x < left[i] + wide[i]) return static_cast<std::int64_t>(i);
  }
  return -1;
}

void lay_out(TokenLines& lines, const std::shared_ptr<const Payload>& of, float width,
             const TokenTexts& texts) {
  const float size = ImGui::GetFontSize();
  if (lines.of == of && lines.width == width && lines.font_size == size) return;
  lines = {of, width, size, {}, {}, {}};
  const float space = ImGui::CalcTextSize(" ").x;
  float x = 0.0F;
  bool line_ends = true;
  for (std::size_t i = 0; i < texts.count; ++i) {
    const std::string label = texts.label(i);
    // Spaces before a word are not part of its mark.
    const std::size_t word = std::min(label.find_first_not_of(' '), label.size());
    const float before = word < label.size() ? static_cast<float>(word) * space : 0.0F;
    const float wide = std::max(ImGui::CalcTextSize(label.c_str()).x - before, 0.4F * size);
    if (line_ends || x + before + wide > width || i == texts.break_at) {
      lines.first.push_back(i);
      x = 0.0F;
    } else {
      x += texts.words ? before : space;
    }
    lines.left.push_back(x);
    lines.wide.push_back(wide);
    x += wide;
    line_ends = texts.words && label.ends_with(kLineEnd);
  }
  lines.first.push_back(texts.count);
}

SeenLines seen_lines(std::size_t count, float line_height) {
  const float above = ImGui::GetScrollY() / line_height;
  const float end = above + ImGui::GetWindowHeight() / line_height;
  return {std::min(count, static_cast<std::size_t>(std::max(0.0F, above))),
          std::min(count, static_cast<std::size_t>(std::max(0.0F, end)) + 1)};
}

const char* without_spaces(const char* label) {
  while (label[0] == ' ' && label[1] != '\0') ++label;
  return label;
}

void legend_entry(const std::string& text, float scale,
                  const std::function<void(ImDrawList*, ImVec2 low, ImVec2 high)>& draw_swatch) {
  const float height = ImGui::GetTextLineHeight();
  const float swatch = height * 0.9F;
  const float gap = 6.0F * scale;
  if (ImGui::GetContentRegionAvail().x < swatch + gap + ImGui::CalcTextSize(text.c_str()).x) {
    ImGui::NewLine();
  }
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const ImVec2 low(at.x, at.y + height * 0.08F);
  const ImVec2 high(at.x + swatch, at.y + height * 0.92F);
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(low, high, ImGui::GetColorU32(ImGuiCol_FrameBg));
  draw_swatch(draw, low, high);
  ImGui::SetCursorScreenPos(ImVec2(at.x + swatch + gap, at.y));
  ImGui::TextUnformatted(text.c_str());
  ImGui::SameLine(0.0F, 18.0F * scale);
}

}  // namespace blockscope
