// The tokens of one sequence in two traces: both texts side by side with their differences marked,
// and a grid positions x steps coloured by the state in both.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "decode_record/base/text.h"
#include "viewer/model/comparison.h"
#include "viewer/panels/compare_views.h"

namespace blockscope {
namespace {

/// Okabe and Ito's colours, and grey for equal tokens.
constexpr std::array<Colour, 5> kStateColours = {0xFF505050, kExternalColour, kInternalColour,
                                                 0xFF9E9E9E, kVermilion};
constexpr std::array<const char*, 5> kStateNames = {
    "mask in both", "token only in A", "token only in B", "the same token", "different tokens"};

Colour colour_of(TokenState state) { return kStateColours[static_cast<std::size_t>(state)]; }

std::string summary_of(const TokensPayload& data) {
  const TokenComparison& tokens = data.tokens;
  std::string text =
      fmt::format("{}: both decided {}, {} equal ({:.1f} %)",
                  data.name.empty() ? fmt::format("sequence {}", data.match.a) : data.name,
                  plural(tokens.decided_in_both, "token"), plural(tokens.equal, "is", "are"),
                  100 * tokens.share_equal());
  text += tokens.first_step < 0 ? "; no difference at any step"
                                : fmt::format("; first difference at step {}", tokens.first_step);
  if (tokens.first_position >= 0) {
    text += fmt::format("; first different token at position {}", tokens.first_position);
  }
  if (tokens.steps_a != tokens.steps_b) {
    text += fmt::format("; {} in A, {} in B", plural(tokens.steps_a, "step"), tokens.steps_b);
  }
  if (!data.match.same_prompt) text += "; matched by name, because the prompts' tokens differ";
  return text;
}

void draw_text(const char* id, const char* side, const std::vector<std::string>& texts,
               const TokensPayload& data, ImVec2 size) {
  ImGui::BeginChild(id, size, ImGuiChildFlags_Borders);
  ImGui::TextDisabled("%s", side);
  const float right = ImGui::GetContentRegionAvail().x + ImGui::GetCursorScreenPos().x;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto position = static_cast<std::int64_t>(i);
    const std::int64_t last = std::max(data.tokens.steps_a, data.tokens.steps_b) - 1;
    const ImVec2 extent = ImGui::CalcTextSize(texts[i].c_str());
    if (i > 0) ImGui::SameLine(0.0F, 0.0F);
    if (ImGui::GetCursorScreenPos().x + extent.x > right) ImGui::NewLine();
    const TokenState state = last < 0 ? TokenState::masked : data.tokens.state(last, position);
    if (state == TokenState::equal || state == TokenState::masked) {
      ImGui::TextUnformatted(texts[i].c_str());
      continue;
    }
    const ImVec2 low = ImGui::GetCursorScreenPos();
    ImGui::GetWindowDrawList()->AddRectFilled(low, ImVec2(low.x + extent.x, low.y + extent.y),
                                              colour_of(state), 2.0F);
    ImGui::PushStyleColor(ImGuiCol_Text, readable_on(colour_of(state)));
    ImGui::TextUnformatted(texts[i].c_str());
    ImGui::PopStyleColor();
  }
  ImGui::EndChild();
}

void draw_legend() {
  const float side = ImGui::GetTextLineHeight();
  for (std::size_t i = 0; i < kStateNames.size(); ++i) {
    if (i > 0) ImGui::SameLine();
    const ImVec2 low = ImGui::GetCursorScreenPos();
    ImGui::GetWindowDrawList()->AddRectFilled(low, ImVec2(low.x + side, low.y + side),
                                              kStateColours[i], 2.0F);
    ImGui::Dummy(ImVec2(side, side));
    ImGui::SameLine();
    ImGui::TextDisabled("%s", kStateNames[i]);
  }
}

void draw_states(const PanelContext& context, const TokensPayload& data) {
  const TokenComparison& tokens = data.tokens;
  const std::int64_t steps = std::max(tokens.steps_a, tokens.steps_b);
  if (steps == 0 || tokens.positions == 0) return explain_missing("No denoising step.");
  ImGui::BeginChild("compare-states", ImVec2(0, 0), ImGuiChildFlags_None,
                    ImGuiWindowFlags_HorizontalScrollbar);
  const float left = ImGui::CalcTextSize("0000 ").x;
  const float top = ImGui::GetTextLineHeight();
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const float least = 3.0F * context.scale;
  const ImVec2 cell(
      std::clamp((space.x - left) / static_cast<float>(tokens.positions), least,
                 24.0F * context.scale),
      std::clamp((space.y - top) / static_cast<float>(steps), least, 18.0F * context.scale));
  const ImVec2 origin = ImGui::GetCursorScreenPos();
  ImGui::InvisibleButton("states", ImVec2(left + cell.x * static_cast<float>(tokens.positions),
                                          top + cell.y * static_cast<float>(steps)));
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const Colour faint = ImGui::GetColorU32(ImGuiCol_TextDisabled);
  const auto every = [](float size, float text) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(text / size)));
  };
  for (std::int64_t p = 0; p < tokens.positions; p += every(cell.x, left)) {
    draw->AddText(ImVec2(origin.x + left + static_cast<float>(p) * cell.x, origin.y), faint,
                  fmt::format("{}", p).c_str());
  }
  const auto first = static_cast<std::int64_t>(ImGui::GetScrollY() / cell.y);
  const auto last =
      std::min(steps, first + static_cast<std::int64_t>(ImGui::GetWindowHeight() / cell.y) + 2);
  const std::int64_t label_every = every(cell.y, top);
  for (std::int64_t step = first; step < last; ++step) {
    const float y = origin.y + top + static_cast<float>(step) * cell.y;
    if (step % label_every == 0) {
      draw->AddText(ImVec2(origin.x, y), faint, fmt::format("{}", step).c_str());
    }
    for (std::int64_t p = 0; p < tokens.positions; ++p) {
      const float x = origin.x + left + static_cast<float>(p) * cell.x;
      draw->AddRectFilled(ImVec2(x, y), ImVec2(x + cell.x - 1.0F, y + cell.y - 1.0F),
                          colour_of(tokens.state(step, p)));
    }
  }
  if (ImGui::IsItemHovered()) {
    const ImVec2 mouse = ImGui::GetMousePos();
    const auto p = static_cast<std::int64_t>(std::floor((mouse.x - origin.x - left) / cell.x));
    const auto step = static_cast<std::int64_t>(std::floor((mouse.y - origin.y - top) / cell.y));
    if (p >= 0 && p < tokens.positions && step >= 0 && step < steps) {
      const auto at = static_cast<std::size_t>(p);
      ImGui::SetTooltip("position %lld, step %lld: %s\nat the end: A \"%s\", B \"%s\"",
                        static_cast<long long>(p), static_cast<long long>(step),
                        kStateNames[static_cast<std::size_t>(tokens.state(step, p))],
                        data.text_a[at].c_str(), data.text_b[at].c_str());
    }
  }
  ImGui::EndChild();
}

}  // namespace

void draw_compared_tokens(PanelContext& context) {
  const auto data = compare_trajectories(context.model);
  if (!ready_or_explain(data)) return;
  ImGui::PushTextWrapPos(0.0F);
  ImGui::TextUnformatted(summary_of(*data.value).c_str());
  ImGui::PopTextWrapPos();
  const float height = ImGui::GetTextLineHeight() * 6.0F;
  const float width = (ImGui::GetContentRegionAvail().x - ImGui::GetStyle().ItemSpacing.x) / 2.0F;
  draw_text("compare-text-a", "A", data.value->text_a, *data.value, ImVec2(width, height));
  ImGui::SameLine();
  draw_text("compare-text-b", "B", data.value->text_b, *data.value, ImVec2(width, height));
  draw_legend();
  draw_states(context, *data.value);
}

}  // namespace blockscope
