// The Attention panel: the text of the prompt and the block, each token shaded by the weight that a
// query of the block gives it. Above it are the mass by region and all positions in one strip; the
// map shows every query.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "viewer/model/attention_text.h"
#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/panels.h"
#include "viewer/panels/token_lines.h"

namespace blockscope {
namespace {

constexpr std::array<const char*, 2> kModes = {"text", "map"};
/// In the order of kRegionNames.
constexpr std::array<const char*, kRegionNames.size()> kShownNames = {
    "first 4 tokens",     "prompt",         "earlier answer", "decided in the block",
    "masks in the block", "after the block"};
constexpr std::size_t kMarked = 8;  // largest weights in the strip

struct ShownRegion {
  std::string name;
  Colour colour;
};

ShownRegion shown_region(const AttentionText& view, std::size_t region) {
  const RegionPlaces places(view.region_names.size());
  constexpr std::size_t kParts = 2;  // the first part of the prompt
  if (region >= kParts && region < places.answer) {
    const std::size_t part = (region - kParts) % kPartColors.size();
    return {view.region_names[region], colour_of_text(kPartColors.at(part))};
  }
  const std::size_t fixed = region < kParts ? region : region - places.answer + kParts;
  return {kShownNames.at(fixed), colour_of_text(kRegionColors.at(fixed))};
}

struct AttentionState {
  int mode = 0;
  bool mean = false;  ///< of the block, although a token is selected
  std::shared_ptr<AttentionSource> source = std::make_shared<AttentionSource>();
  std::optional<std::int32_t> scroll_to;  ///< place in by_position
  TokenLines lines;
  std::shared_ptr<const AttentionText> binned_of;
  std::size_t binned_columns = 0;
  std::shared_ptr<const MatrixPayload> binned;
  std::vector<std::int64_t> column_positions;
};

std::optional<std::size_t> query_of(const PanelContext& context, const AttentionState& state,
                                    const AttentionText& view) {
  const std::optional<std::int32_t> token = context.model.selection().token;
  if (state.mean || !token || *token < 0) return std::nullopt;
  const auto query = static_cast<std::size_t>(*token);
  return query < view.map.num_queries ? std::optional(query) : std::nullopt;
}

/// A weight on the scale of the colours: the square root of its share of the largest one, because a
/// few keys hold most of the attention.
float shade(float weight, float largest) {
  return largest > 0.0F ? std::sqrt(std::max(0.0F, weight) / largest) : 0.0F;
}

std::string label_of(const AttentionText& view, std::size_t place) {
  const std::size_t key = view.by_position[place];
  if (!view.has_pieces) return fmt::format("{}", view.map.positions[key]);
  return end_of_text_label(view.runs[place], view.texts[key]);
}

std::string query_name(const AttentionText& view, std::optional<std::size_t> query) {
  if (!query) return "mean of the block's queries";
  const std::int32_t position = view.map.block_start + static_cast<std::int32_t>(*query);
  for (std::size_t n = view.map.num_external; n < view.map.num_keys(); ++n) {
    if (view.map.positions[n] == position) {
      return fmt::format("query {} (position {}, \"{}\")", *query, position, view.texts[n]);
    }
  }
  return fmt::format("query {} (position {})", *query, position);
}

void slot_slider(const char* id, const char* name, const std::vector<std::int64_t>& numbers,
                 std::size_t& slot, float scale) {
  int at = static_cast<int>(slot);
  ImGui::SameLine();
  ImGui::SetNextItemWidth(120.0F * scale);
  const std::string text = fmt::format("{} {}", name, numbers[slot]);
  if (ImGui::SliderInt(id, &at, 0, static_cast<int>(numbers.size()) - 1, text.c_str(),
                       ImGuiSliderFlags_NoInput)) {
    slot = static_cast<std::size_t>(std::clamp(at, 0, static_cast<int>(numbers.size()) - 1));
  }
}

void draw_attention_controls(PanelContext& context, AttentionState& state) {
  ViewModel& model = context.model;
  const TraceMeta& meta = model.overview()->info.meta;
  ImGui::SetNextItemWidth(80.0F * context.scale);
  ImGui::Combo("##mode", &state.mode, kModes.data(), static_cast<int>(kModes.size()));
  Selection selection = model.selection();
  slot_slider("##layer", "layer", meta.layers, selection.layer, context.scale);
  slot_slider("##head", "head", meta.heads, selection.head, context.scale);
  if (selection != model.selection()) model.select(selection);
  if (state.mode != 0) return;
  ImGui::SameLine();
  ImGui::BeginDisabled(state.mean || !model.selection().token);
  if (ImGui::Button("mean of the block")) state.mean = true;
  ImGui::EndDisabled();
}

void draw_regions(const AttentionText& view, std::span<const float> weights, float scale) {
  const auto masses = view.masses(weights);
  const ImVec2 low = ImGui::GetCursorScreenPos();
  const float width = std::max(40.0F, ImGui::GetContentRegionAvail().x);
  const float height = ImGui::GetTextLineHeight() * 0.8F;
  ImGui::InvisibleButton("regions", ImVec2(width, height));
  ImDrawList* draw = ImGui::GetWindowDrawList();
  draw->AddRectFilled(low, ImVec2(low.x + width, low.y + height),
                      ImGui::GetColorU32(ImGuiCol_FrameBg));
  double before = 0.0;
  for (std::size_t region = 0; region < masses.size(); ++region) {
    const auto x = [&](double share) { return low.x + static_cast<float>(share) * width; };
    if (masses[region] > 0.0) {
      draw->AddRectFilled(ImVec2(x(before), low.y),
                          ImVec2(x(before + masses[region]), low.y + height),
                          shown_region(view, region).colour);
      before += masses[region];
    }
  }
  for (std::size_t region = 0; region < masses.size(); ++region) {
    if (!(masses[region] > 0.0)) continue;
    const ShownRegion shown = shown_region(view, region);
    legend_entry(fmt::format("{} {:.1f} %", shown.name, 100.0 * masses[region]), scale,
                 [&](ImDrawList* list, ImVec2 from, ImVec2 to) {
                   list->AddRectFilled(from, to, shown.colour);
                 });
  }
  ImGui::NewLine();
}

void key_tooltip(const AttentionText& view, std::span<const float> weights, std::size_t key) {
  ImGui::SetTooltip("position %d (%s): \"%s\"\nweight %.4g", view.map.positions[key],
                    shown_region(view, view.regions[key]).name.c_str(), view.texts[key].c_str(),
                    double{weights[key]});
}

struct KeyStrip {
  ImVec2 low, high;
  std::size_t keys;
  float x_of(std::size_t place) const {
    return low.x + static_cast<float>(static_cast<double>(place) / static_cast<double>(keys)) *
                       (high.x - low.x);
  }
};

/// Marks above the strip for the largest weights.
void draw_largest(const AttentionText& view, std::span<const float> weights,
                  const KeyStrip& strip) {
  std::vector<std::size_t> top(weights.size());
  for (std::size_t i = 0; i < top.size(); ++i) top[i] = i;
  const float size = ImGui::GetTextLineHeight() * 0.28F;
  const std::size_t marked = std::min(kMarked, top.size());
  std::ranges::partial_sort(top, top.begin() + static_cast<std::ptrdiff_t>(marked),
                            std::ranges::greater{}, [&](std::size_t i) {
                              const float weight = weights[view.by_position[i]];
                              return std::isnan(weight) ? -1.0F : weight;
                            });
  for (std::size_t i = 0; i < marked; ++i) {
    const float x = (strip.x_of(top[i]) + strip.x_of(top[i] + 1)) / 2;
    ImGui::GetWindowDrawList()->AddTriangleFilled(
        ImVec2(x - size, strip.low.y - 1.5F * size), ImVec2(x + size, strip.low.y - 1.5F * size),
        ImVec2(x, strip.low.y - 1.0F), ImGui::GetColorU32(ImGuiCol_Text));
  }
}

/// All keys in one strip: each pixel has the colour of its largest weight. The largest of all have
/// a mark. Returns the place under the mouse, and whether the mouse is pressed there.
std::pair<std::int64_t, bool> draw_key_strip(PanelContext& context, const AttentionText& view,
                                             std::span<const float> weights, float largest,
                                             KeyStrip& strip) {
  const float line = ImGui::GetTextLineHeight();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = std::max(40.0F, ImGui::GetContentRegionAvail().x);
  ImGui::InvisibleButton("keys", ImVec2(width, line * 2.0F));
  strip = {ImVec2(at.x, at.y + line * 0.5F), ImVec2(at.x + width, at.y + line * 2.0F),
           std::max<std::size_t>(1, weights.size())};
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const auto columns = static_cast<std::size_t>(width);
  for (std::size_t column = 0; column < columns && !weights.empty(); ++column) {
    const std::size_t first = column * weights.size() / columns;
    const std::size_t end = std::max(first + 1, (column + 1) * weights.size() / columns);
    float most = 0.0F;
    for (std::size_t i = first; i < end; ++i) {
      most = std::max(most, weights[view.by_position[i]]);
    }
    const float x = strip.low.x + static_cast<float>(column);
    draw->AddRectFilled(ImVec2(x, strip.low.y), ImVec2(x + 1.0F, strip.high.y),
                        context.map.at(shade(most, largest), 0.0F, 1.0F));
  }
  draw_largest(view, weights, strip);
  if (weights.empty() || (!ImGui::IsItemHovered() && !ImGui::IsItemActive())) return {-1, false};
  const double share =
      std::clamp(static_cast<double>((ImGui::GetMousePos().x - strip.low.x) / width), 0.0, 1.0);
  const auto keys = static_cast<std::int64_t>(weights.size());
  const auto under = static_cast<std::int64_t>(share * static_cast<double>(keys));
  return {std::min(under, keys - 1), ImGui::IsItemActive()};
}

struct ShownWeights {
  std::span<const float> weights;
  float largest;
  std::optional<std::size_t> query;
};

void draw_key_line(const PanelContext& context, const AttentionText& view,
                   const ShownWeights& shown, const TokenLines& lines, std::size_t line, ImVec2 at,
                   float gutter) {
  ImDrawList* draw = ImGui::GetWindowDrawList();
  const float height = ImGui::GetTextLineHeight() * 1.35F;
  const float inset = (height - ImGui::GetTextLineHeight()) / 2;
  const std::size_t begin = lines.first[line];
  const std::string number = fmt::format("{}", view.map.positions[view.by_position[begin]]);
  const float right = at.x + gutter - ImGui::GetFontSize() * 0.7F;
  draw->AddText(ImVec2(right - ImGui::CalcTextSize(number.c_str()).x, at.y + inset),
                ImGui::GetColorU32(ImGuiCol_TextDisabled), number.c_str());
  for (std::size_t place = begin; place < lines.first[line + 1]; ++place) {
    const std::size_t key = view.by_position[place];
    const ImVec2 low(at.x + gutter + lines.left[place], at.y);
    const ImVec2 high(low.x + lines.wide[place], at.y + height - 1.0F);
    const Colour colour = context.map.at(shade(shown.weights[key], shown.largest), 0.0F, 1.0F);
    draw->AddRectFilled(low, high, colour, 2.0F);
    draw->AddText(ImVec2(low.x, low.y + inset), readable_on(colour),
                  without_spaces(label_of(view, place).c_str()));
    if (key < view.map.num_external) continue;
    draw->AddLine(ImVec2(low.x, high.y), high, shown_region(view, view.regions[key]).colour, 2.0F);
    const auto position = static_cast<std::size_t>(view.map.positions[key] - view.map.block_start);
    if (shown.query == position) {  // white on black is visible on every colour
      draw->AddRect(low, high, 0xFF000000U, 2.0F, 0, 3.5F);
      draw->AddRect(low, high, 0xFFFFFFFFU, 2.0F, 0, 1.6F);
    }
  }
}

/// The text of all keys. Returns the place that was clicked.
std::optional<std::size_t> draw_key_text(PanelContext& context, AttentionState& state,
                                         const std::shared_ptr<const AttentionText>& data,
                                         std::span<const float> weights, float largest,
                                         std::optional<std::size_t> query, SeenLines& seen) {
  const AttentionText& view = *data;
  ImGui::BeginChild("text", ImVec2(0, 0), ImGuiChildFlags_None,
                    ImGuiWindowFlags_AlwaysVerticalScrollbar);
  const float gutter = ImGui::CalcTextSize("000000").x;
  const float line_height = ImGui::GetTextLineHeight() * 1.35F;
  const auto block = std::ranges::find(view.by_position, view.map.num_external);
  lay_out(state.lines, data, std::max(60.0F, ImGui::GetContentRegionAvail().x - gutter - 2.0F),
          {view.map.num_keys(), [&](std::size_t place) { return label_of(view, place); },
           view.has_pieces, static_cast<std::size_t>(block - view.by_position.begin())});
  const TokenLines& lines = state.lines;
  if (state.scroll_to) {
    const auto line = lines.line_of(static_cast<std::size_t>(*state.scroll_to));
    ImGui::SetScrollY(static_cast<float>(line) * line_height - ImGui::GetWindowHeight() / 2);
    state.scroll_to.reset();
  }
  const ImVec2 origin = ImGui::GetCursorScreenPos();
  ImGui::InvisibleButton("tokens",
                         ImVec2(gutter + lines.width,
                                std::max(1.0F, line_height * static_cast<float>(lines.count()))));
  const bool clicked = ImGui::IsItemClicked();
  const bool hovered = ImGui::IsItemHovered();
  seen = seen_lines(lines.count(), line_height);
  for (std::size_t line = seen.first; line < seen.last; ++line) {
    const float y = origin.y + static_cast<float>(line) * line_height;
    draw_key_line(context, view, {weights, largest, query}, lines, line, ImVec2(origin.x, y),
                  gutter);
  }
  std::optional<std::size_t> result;
  if (hovered) {
    const ImVec2 mouse = ImGui::GetMousePos();
    const std::int64_t under =
        lines.token_at(ImVec2(mouse.x - origin.x - gutter, mouse.y - origin.y), line_height);
    if (under >= 0) {
      key_tooltip(view, weights, view.by_position[static_cast<std::size_t>(under)]);
      if (clicked) result = static_cast<std::size_t>(under);
    }
  }
  ImGui::EndChild();
  return result;
}

/// A click on a token of the block makes it the query; a click on the query shows the mean again.
void take_click(PanelContext& context, AttentionState& state, const AttentionText& view,
                std::size_t place, std::optional<std::size_t> query) {
  const std::size_t key = view.by_position[place];
  if (key < view.map.num_external) return;
  const std::int32_t token = view.map.positions[key] - view.map.block_start;
  if (query && static_cast<std::int32_t>(*query) == token) {
    state.mean = true;
    return;
  }
  state.mean = false;
  Selection selection = context.model.selection();
  selection.token = token;
  context.model.select(selection);
}

void draw_attention_text(PanelContext& context, AttentionState& state,
                         const std::shared_ptr<const AttentionText>& data) {
  const AttentionText& view = *data;
  const auto query = query_of(context, state, view);
  const auto weights = view.weights(query);
  ImGui::TextUnformatted(query_name(view, query).c_str());
  if (!weights.empty() && std::isnan(weights[0])) {
    return explain_missing("This step did not compute the query. Choose another one.");
  }
  draw_regions(view, weights, context.scale);
  const float largest = weights.empty() ? 0.0F : *std::ranges::max_element(weights);
  ImGui::TextDisabled("%zu keys; shade: square root of the weight, up to %.3g", weights.size(),
                      double{largest});
  KeyStrip strip{};
  const auto [under, pressed] = draw_key_strip(context, view, weights, largest, strip);
  if (under >= 0) key_tooltip(view, weights, view.by_position[static_cast<std::size_t>(under)]);
  if (pressed) state.scroll_to = static_cast<std::int32_t>(under);
  ImDrawList* outside = ImGui::GetWindowDrawList();
  SeenLines seen;
  const auto clicked = draw_key_text(context, state, data, weights, largest, query, seen);
  if (clicked) take_click(context, state, view, *clicked, query);
  const TokenLines& lines = state.lines;
  if (seen.last - seen.first < lines.count()) {  // frames the visible part
    outside->AddRect(ImVec2(strip.x_of(lines.first[seen.first]), strip.low.y - 1.0F),
                     ImVec2(strip.x_of(lines.first[seen.last]), strip.high.y + 1.0F),
                     ImGui::GetColorU32(ImGuiCol_Text), 0.0F, 0, 1.5F);
  }
}

void draw_attention_map(PanelContext& context, AttentionState& state,
                        const std::shared_ptr<const AttentionText>& data) {
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const auto columns = static_cast<std::size_t>(std::clamp(space.x, 64.0F, 4096.0F));
  if (state.binned_of != data || state.binned_columns != columns) {
    state.binned = binned_weights(*data, columns);
    state.column_positions = column_positions(*data, columns);
    state.binned_of = data;
    state.binned_columns = columns;
  }
  const Selection at = context.model.selection();
  const TraceMeta& meta = context.model.overview()->info.meta;
  HeatmapPlot plot;
  plot.id = "attention-map";
  plot.title = fmt::format("weights, layer {}, head {}, step {}###attention-map",
                           meta.layers[at.layer], meta.heads[at.head], context.model.step()->step);
  const std::size_t keys = data->map.num_keys();
  plot.x_label = state.binned->matrix.columns < keys
                     ? fmt::format("keys by position, {} in {} columns (the largest of each)", keys,
                                   state.binned->matrix.columns)
                     : "keys by position";
  plot.x_numbers = &state.column_positions;
  plot.y_label = "query in the block";
  plot.unit = "share";
  plot.width = space.x;
  plot.height = space.y;
  if (at.token) plot.mark_y = *at.token;
  const auto hit = draw_heatmap(context, plot, state.binned);
  if (hit && hit->clicked) {
    Selection selection = at;
    selection.token = static_cast<std::int32_t>(hit->row);
    state.mean = false;
    context.model.select(selection);
  }
}

std::optional<std::string> lacks_keys(const TraceMeta& meta) {
  if (meta.level >= RecordLevel::full || !meta.map_layers.empty()) return std::nullopt;
  return fmt::format(
      "This trace has level '{}'. Attention weights are computed from queries and keys, which a "
      "trace captured with --record full has. --record-maps records the weights of some layers and "
      "heads.",
      to_string(meta.level));
}

void draw_attention_panel(PanelContext& context) {
  if (context.model.step() == nullptr) return explain_missing("No denoising step is selected.");
  if (const auto why = lacks_keys(context.model.overview()->info.meta)) {
    return explain_missing(*why);
  }
  AttentionState& state = context.state.of<AttentionState>();
  draw_attention_controls(context, state);
  const auto data = request_attention_text(context.model, state.source);
  if (!ready_or_explain(data)) return;
  if (state.mode == 0) return draw_attention_text(context, state, data.value);
  draw_attention_map(context, state, data.value);
}

std::optional<CsvTable> attention_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr || lacks_keys(context.model.overview()->info.meta)) {
    return std::nullopt;
  }
  AttentionState& state = context.state.of<AttentionState>();
  const auto data = request_attention_text(context.model, state.source);
  if (!data.value) return std::nullopt;
  if (state.mode != 0) return attention_map_table(*data.value);
  return attention_table(*data.value, query_of(context, state, *data.value));
}

void show_attention(PanelStates& states, std::size_t mode) {
  states.of<AttentionState>().mode = static_cast<int>(mode);
}

bool has_keys(const ViewModel& model) {
  return model.overview() != nullptr && !lacks_keys(model.overview()->info.meta);
}

}  // namespace

Panel attention_panel() {
  return {.name = "Attention",
          .draw = draw_attention_panel,
          .table = attention_panel_table,
          .fits = has_keys,
          .show = {.words = {kModes.begin(), kModes.end()}, .take_word = show_attention}};
}

}  // namespace blockscope
