// The prefix in the Selection panel: a strip of all positions, and below it the text, token by
// token. Keys of the exact set are marked in the upper half, chosen keys in the lower half, so the
// marks differ even without colours.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "decode_record/read/end_of_text.h"
#include "viewer/panels/selection_parts.h"
#include "viewer/panels/token_lines.h"

namespace blockscope {
namespace {

const ComparedKey* key_at(const KeyView& view, std::int64_t position) {
  const auto found = std::ranges::lower_bound(view.sets.keys, position, {}, &ComparedKey::position);
  return found != view.sets.keys.end() && found->position == position ? &*found : nullptr;
}

/// A token's text, or its position if the trace has no texts.
std::string label_of(const PrefixText& text, std::size_t position) {
  return text.has_pieces ? end_of_text_label(text.runs[position], text.tokens[position])
                         : fmt::format("{}", position);
}

void tooltip(const StepKeys& keys, const KeyView& view, const PrefixText& text,
             std::int64_t position) {
  const auto at = static_cast<std::size_t>(position);
  if (position < 0 || at >= text.tokens.size()) return;
  std::string lines =
      fmt::format("position {} ({}): \"{}\"", position,
                  at < text.prompt_length ? "prompt" : "committed", text.tokens[at]);
  if (const ComparedKey* key = key_at(view, position)) {
    const bool read = view.against == KeysAgainst::read;
    lines += fmt::format("\n{}", name_of(key->mark, view));
    if (view.compares && key->chosen_rank >= 0) {
      lines += fmt::format("\nrank {} {}", key->chosen_rank + 1,
                           read ? "among the keys read" : "in step 1's set");
    }
    if (key->exact_rank >= 0) {
      lines += fmt::format("\nrank {} in the exact set, probability {:.4f}", key->exact_rank + 1,
                           double{keys.probability[static_cast<std::size_t>(key->exact_rank)]});
    } else if (!keys.exact.empty()) {
      lines += fmt::format("\nnot among the {} keys of the exact set", keys.exact.size());
    }
  } else if (keys.read == KeysRead::some && view.against == KeysAgainst::read) {
    lines += "\nnot read";
  }
  ImGui::SetTooltip("%s", lines.c_str());
}

struct TextArea {
  const TokenLines& lines;
  ImVec2 origin;
  float gutter, line_height;
  SeenLines seen;
};

void draw_token(const TextArea& area, const ComparedKey* key, bool here, ImVec2 low, float wide,
                const char* label) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const float height = ImGui::GetTextLineHeight();
  const ImVec2 high(low.x + wide, low.y + area.line_height - 1.0F);
  Colour colour = ImGui::GetColorU32(ImGuiCol_Text, 0.62F);
  if (key != nullptr) {
    colour = ImGui::GetColorU32(ImGuiCol_Text);
    const Colour mark = colour_of(key->mark);
    if (key->mark == KeyMark::both) {
      draw->AddRectFilled(low, high, mark, 2.0F);
      colour = readable_on(mark);
    } else {
      const float bar = std::max(3.0F, area.line_height * 0.18F);
      draw->AddRectFilled(low, high, (mark & 0x00FFFFFFU) | 0x58000000U, 2.0F);
      const bool above = key->mark == KeyMark::exact_only;
      draw->AddRectFilled(above ? low : ImVec2(low.x, high.y - bar),
                          above ? ImVec2(high.x, low.y + bar) : high, mark);
    }
  }
  draw->AddText(ImVec2(low.x, low.y + (area.line_height - height) / 2), colour,
                without_spaces(label));
  if (here) draw->AddRect(low, high, ImGui::GetColorU32(ImGuiCol_Text), 2.0F, 0, 2.0F);
}

void draw_lines(const PanelContext& context, const KeyView& view, const PrefixText& text,
                const TextArea& area) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const Colour faint = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  const float inset = (area.line_height - ImGui::GetTextLineHeight()) / 2;
  for (std::size_t line = area.seen.first; line < area.seen.last; ++line) {
    const float y = area.origin.y + static_cast<float>(line) * area.line_height;
    const std::string number = fmt::format("{}", area.lines.first[line]);
    const float right = area.origin.x + area.gutter - ImGui::GetFontSize() * 0.7F;
    draw->AddText(ImVec2(right - ImGui::CalcTextSize(number.c_str()).x, y + inset), faint,
                  number.c_str());
    if (area.lines.first[line] == text.prompt_length && line > 0) {  // the decoded text begins here
      draw->AddLine(ImVec2(area.origin.x, y - 1.0F),
                    ImVec2(area.origin.x + area.gutter + area.lines.width, y - 1.0F),
                    ImGui::GetColorU32(ImGuiCol_SeparatorActive));
    }
    for (std::size_t i = area.lines.first[line]; i < area.lines.first[line + 1]; ++i) {
      const auto position = static_cast<std::int32_t>(i);
      draw_token(area, key_at(view, position), context.state.of<SelectionState>().at == position,
                 ImVec2(area.origin.x + area.gutter + area.lines.left[i], y), area.lines.wide[i],
                 label_of(text, i).c_str());
    }
  }
}

struct Strip {
  ImVec2 low, high;  // of both lanes
  double positions;
  float x_of(double position) const {
    return low.x + static_cast<float>(position / positions) * (high.x - low.x);
  }
};

void draw_ticks(const Strip& strip) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const Colour faint = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  const float room = (strip.high.x - strip.low.x) / (ImGui::GetFontSize() * 5.0F);
  std::int64_t every = 16;
  while (strip.positions / static_cast<double>(every) > static_cast<double>(room)) every *= 2;
  for (std::int64_t at = 0; static_cast<double>(at) < strip.positions; at += every) {
    const float x = strip.x_of(static_cast<double>(at));
    draw->AddLine(ImVec2(x, strip.high.y), ImVec2(x, strip.high.y + 4.0F), faint);
    draw->AddText(ImVec2(x + 3.0F, strip.high.y + 1.0F), faint, fmt::format("{}", at).c_str());
  }
}

void draw_lanes(const Strip& strip, const KeyView& view, const PrefixText& text) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(strip.low, strip.high, ImGui::GetColorU32(ImGuiCol_FrameBg));
  const float middle = (strip.low.y + strip.high.y) / 2;
  draw->AddLine(ImVec2(strip.low.x, middle), ImVec2(strip.high.x, middle),
                ImGui::GetColorU32(ImGuiCol_Border));
  const float wide = std::max(3.0F, strip.x_of(1.0) - strip.x_of(0.0));
  // The rarest marks last, so a hit on the same pixel does not hide a miss.
  for (const KeyMark mark : {KeyMark::chosen_only, KeyMark::both, KeyMark::exact_only}) {
    for (const ComparedKey& key : view.sets.keys) {
      if (key.mark != mark) continue;
      const float x = strip.x_of(key.position);
      draw_mark(draw, ImVec2(x, strip.low.y), ImVec2(x + wide, strip.high.y), mark);
    }
  }
  if (text.prompt_length > 0 && text.prompt_length < text.tokens.size()) {
    const float x = strip.x_of(static_cast<double>(text.prompt_length));
    draw->AddLine(ImVec2(x, strip.low.y), ImVec2(x, strip.high.y),
                  ImGui::GetColorU32(ImGuiCol_SeparatorActive), 1.5F);
  }
}

/// Draws the strip. Returns the position under the mouse, and whether the mouse is pressed there.
std::pair<std::int64_t, bool> draw_strip(PanelContext& context, const KeyView& view,
                                         const PrefixText& text, Strip& strip) {
  const float line = ImGui::GetTextLineHeight();
  const char* below = view.against == KeysAgainst::read ? "read" : "step 1";
  const float names = ImGui::CalcTextSize("step 1").x + 8.0F * context.scale;
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = std::max(40.0F, ImGui::GetContentRegionAvail().x);
  ImGui::InvisibleButton("strip", ImVec2(width, line * 3.2F));
  strip = {ImVec2(at.x + names, at.y), ImVec2(at.x + width, at.y + line * 2.0F),
           std::max(1.0, static_cast<double>(text.tokens.size()))};
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const Colour faint = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  draw->AddText(at, faint, "exact");
  draw->AddText(ImVec2(at.x, at.y + line), faint, below);
  draw_lanes(strip, view, text);
  draw_ticks(strip);
  if (!ImGui::IsItemHovered() && !ImGui::IsItemActive()) return {-1, false};
  const float share = (ImGui::GetMousePos().x - strip.low.x) / (strip.high.x - strip.low.x);
  auto position = static_cast<std::int64_t>(
      std::clamp(static_cast<double>(share) * strip.positions, 0.0, strip.positions - 1.0));
  // A key is only a few pixels wide, so take the nearest one within reach.
  const auto away = [&](const ComparedKey& key) {
    return std::abs(strip.x_of(key.position) + 1.5F - ImGui::GetMousePos().x);
  };
  const auto nearest = std::ranges::min_element(view.sets.keys, {}, away);
  if (nearest != view.sets.keys.end() && away(*nearest) < 5.0F * context.scale) {
    position = nearest->position;
  }
  return {position, ImGui::IsItemActive()};
}

}  // namespace

Colour colour_of(KeyMark mark) {
  constexpr std::array<Colour, 3> kColours = {kGreen, kVermilion, kSkyBlue};
  return kColours.at(static_cast<std::size_t>(mark));
}

void draw_mark(ImDrawList* draw, ImVec2 low, ImVec2 high, KeyMark mark) {
  const float middle = (low.y + high.y) / 2;
  if (mark == KeyMark::exact_only) high.y = middle;
  if (mark == KeyMark::chosen_only) low.y = middle;
  draw->AddRectFilled(low, high, colour_of(mark));
}

void draw_legend_entry(KeyMark mark, const std::string& text, float scale) {
  legend_entry(text, scale, [mark](ImDrawList* draw, ImVec2 low, ImVec2 high) {
    draw_mark(draw, low, high, mark);
  });
}

void draw_prefix(PanelContext& context, const StepKeys& keys, const KeyView& view,
                 const std::shared_ptr<const PrefixText>& text) {
  SelectionState& state = context.state.of<SelectionState>();
  if (state.lines.of != text) state.at.reset();
  Strip strip{};
  const auto [under, pressed] = draw_strip(context, view, *text, strip);
  if (under >= 0) tooltip(keys, view, *text, under);
  if (pressed) state.scroll_to = static_cast<std::int32_t>(under);
  ImDrawList* outside = ImGui::GetWindowDrawList();

  // Always with a scrollbar: one that appears and disappears would change the wrapping, and so
  // itself.
  ImGui::BeginChild("prefix", ImVec2(0, 0), ImGuiChildFlags_None,
                    ImGuiWindowFlags_AlwaysVerticalScrollbar);
  const float gutter = ImGui::CalcTextSize("000000").x;
  const float line_height = ImGui::GetTextLineHeight() * 1.35F;
  const TokenLines& lines = state.lines;
  lay_out(state.lines, text, std::max(60.0F, ImGui::GetContentRegionAvail().x - gutter - 2.0F),
          {text->tokens.size(), [&](std::size_t i) { return label_of(*text, i); }, text->has_pieces,
           text->prompt_length});
  const std::size_t count = lines.count();
  if (state.scroll_to) {
    const auto line = lines.line_of(static_cast<std::size_t>(*state.scroll_to));
    ImGui::SetScrollY(static_cast<float>(line) * line_height - ImGui::GetWindowHeight() / 2);
    state.scroll_to.reset();
  }
  const ImVec2 origin = ImGui::GetCursorScreenPos();
  ImGui::InvisibleButton("tokens", ImVec2(gutter + lines.width,
                                          std::max(1.0F, line_height * static_cast<float>(count))));
  const TextArea area{lines, origin, gutter, line_height, seen_lines(count, line_height)};
  draw_lines(context, view, *text, area);
  if (ImGui::IsItemHovered()) {
    const ImVec2 mouse = ImGui::GetMousePos();
    tooltip(keys, view, *text,
            lines.token_at(ImVec2(mouse.x - origin.x - gutter, mouse.y - origin.y), line_height));
  }
  ImGui::EndChild();
  if (count > 0 && area.seen.last - area.seen.first < count) {  // frames the visible part
    outside->AddRect(
        ImVec2(strip.x_of(static_cast<double>(lines.first[area.seen.first])), strip.low.y - 1.0F),
        ImVec2(strip.x_of(static_cast<double>(lines.first[area.seen.last])), strip.high.y + 1.0F),
        ImGui::GetColorU32(ImGuiCol_Text), 0.0F, 0, 1.5F);
  }
}

}  // namespace blockscope
