// The Draft panel of drafted traces (DFlash, arXiv 2602.06036). It shows the drafted tokens and the
// target's decisions of each round, or the answer with the origin of each token. It also plots
// acceptance over positions.
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "decode_record/base/text.h"
#include "viewer/panels/draft_parts.h"
#include "viewer/panels/plot_axes.h"

namespace blockscope {
namespace {

using Scale = DraftColourInfo::Scale;

const DraftValues& values_of(DraftState& state, const std::shared_ptr<const ShownRounds>& rounds) {
  if (state.values_of != rounds || state.values_colour != state.colour) {
    state.values_of = rounds;
    state.values_colour = state.colour;
    state.values = count_values(*rounds, state.colour);
  }
  return state.values;
}

void draw_draft_controls(PanelContext& context) {
  DraftState& state = context.state.of<DraftState>();
  constexpr std::array<const char*, 2> kViews = {"rounds", "answer"};
  int view = state.answer ? 1 : 0;
  ImGui::SetNextItemWidth(100.0F * context.scale);
  if (ImGui::Combo("##view", &view, kViews.data(), static_cast<int>(kViews.size()))) {
    state.answer = view == 1;
    state.shown_row = -1;
  }
  if (state.answer) return;
  ImGui::SameLine();
  ImGui::SetNextItemWidth(std::min(360.0F * context.scale, ImGui::GetContentRegionAvail().x));
  if (!ImGui::BeginCombo("##colour", info_of(state.colour).label)) return;
  for (std::size_t i = 0; i < kDraftColours; ++i) {
    const auto colour = static_cast<DraftColour>(i);
    if (ImGui::Selectable(info_of(colour).label, colour == state.colour)) state.colour = colour;
  }
  ImGui::EndCombo();
}

std::string counts_text(const DraftCounts& counts) {
  if (counts.rounds == 0) return "no round with drafts";
  return fmt::format("{}, {:.2f} tokens a round", plural(counts.rounds, "round"),
                     counts.tokens_per_round());
}

void draw_summary(const PanelContext& context, const DraftTotals& totals,
                  const ShownRounds& rounds) {
  const ViewModel& model = context.model;
  const Overview& overview = *model.overview();
  const auto sequence = static_cast<std::size_t>(model.block()->sequence);
  ImGui::PushTextWrapPos(0.0F);
  std::string lines =
      fmt::format("trace: {}, including the target's own token", counts_text(totals.trace));
  if (overview.info.num_sequences > 1 && sequence < totals.sequences.size()) {
    lines += fmt::format("\nsequence {} {}: {}", sequence, overview.sequence_names.at(sequence),
                         counts_text(totals.sequences[sequence]));
  }
  ImGui::TextUnformatted(lines.c_str());
  const std::size_t here = rounds.round_of_row(model.step()->row);
  if (here < rounds.rounds.size()) {
    const ShownRounds::Round& round = rounds.rounds[here];
    std::string text = fmt::format("round {}: {} of {} accepted", here, round.accepted,
                                   plural(round.drafted, "drafted token"));
    if (round.draft_ns > 0 && round.target_ns > 0) {
      text += fmt::format("; draft {:.2f} ms, target {:.2f} ms",
                          static_cast<double>(round.draft_ns) / 1e6,
                          static_cast<double>(round.target_ns) / 1e6);
    }
    ImGui::TextDisabled("%s", text.c_str());
  }
  ImGui::PopTextWrapPos();
}

void swatch(const std::string& text, Colour colour, float scale, bool outlined = false) {
  legend_entry(text, scale, [&](ImDrawList* draw, ImVec2 low, ImVec2 high) {
    if (outlined) {
      draw->AddRect(low, high, colour, 2.0F, 0, 1.5F * scale);
    } else {
      draw->AddRectFilled(low, high, colour, 2.0F);
    }
  });
}

/// A bar of the map's colours, with the values of its two ends.
void draw_bar(const PanelContext& context, float largest, const char* unit) {
  const float height = ImGui::GetTextLineHeight();
  const float wide = 120.0F * context.scale;
  ImGui::TextUnformatted("0");
  ImGui::SameLine(0.0F, 6.0F * context.scale);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImDrawList* draw = ImGui::GetWindowDrawList();
  constexpr int kSteps = 24;
  for (int i = 0; i < kSteps; ++i) {
    const float low = at.x + wide * static_cast<float>(i) / kSteps;
    draw->AddRectFilled(
        ImVec2(low, at.y + height * 0.1F),
        ImVec2(at.x + wide * static_cast<float>(i + 1) / kSteps, at.y + height * 0.9F),
        context.map.at((static_cast<float>(i) + 0.5F) / kSteps, 0.0F, 1.0F));
  }
  ImGui::Dummy(ImVec2(wide, height));
  ImGui::SameLine(0.0F, 6.0F * context.scale);
  ImGui::TextUnformatted(fmt::format("{:.3g}{}", largest, unit).c_str());
  ImGui::SameLine(0.0F, 18.0F * context.scale);
}

void draw_rounds_legend(const PanelContext& context, const DraftValues& values) {
  const float scale = context.scale;
  const DraftColourInfo& colour = info_of(context.state.of<DraftState>().colour);
  switch (colour.scale) {
    case Scale::outcome:
      swatch("accepted", kAcceptedColour, scale);
      swatch("rejected", kRejectedColour, scale);
      swatch("after the first rejected", behind_colour(), scale);
      break;
    case Scale::rank:
      for (std::size_t i = 0; i < kRankClasses; ++i) {
        swatch(name_of_rank_class(i), colour_of_rank_class(i, context.map), scale);
      }
      break;
    case Scale::entropy:
      draw_bar(context, values.largest, " nats");
      break;
    case Scale::probability:
      draw_bar(context, 1.0F, "");
      break;
  }
  if (colour.scale != Scale::outcome) {
    swatch("rejected", kRejectedColour, scale, /*outlined=*/true);
    if (values.lacking > 0) {
      swatch(fmt::format("{} not in the draft's vocabulary", values.lacking), kLackingColour,
             scale);
    }
    if (values.missing > 0) {
      swatch(fmt::format("{} not recorded", values.missing), kNoValueColour, scale);
    }
  }
  swatch("the target's token", kTargetColour, scale, /*outlined=*/true);
  ImGui::NewLine();
}

void draw_answer_legend(const PanelContext& context, const ShownRounds& rounds) {
  swatch("the target's own token", kTargetColour, context.scale);
  for (std::int32_t p = 1; p < rounds.block_length; ++p) {
    swatch(p == 1 ? "drafted and accepted at position 1" : fmt::format("{}", p),
           colour_of_position(p, rounds.block_length), context.scale);
  }
  ImGui::NewLine();
}

void plot_survival(const char* label, const DraftCounts& counts, Colour colour, float scale) {
  if (counts.rounds == 0) return;
  std::vector<double> places;
  std::vector<double> shares;
  for (std::size_t p = 1; p < counts.survived.size(); ++p) {
    places.push_back(static_cast<double>(p));
    shares.push_back(counts.survival(p));
  }
  ImPlotSpec spec;
  spec.LineColor = ImGui::ColorConvertU32ToFloat4(colour);
  spec.LineWeight = 2.0F * scale;
  spec.Marker = ImPlotMarker_Circle;
  spec.MarkerSize = 3.0F * scale;
  spec.MarkerFillColor = spec.LineColor;
  ImPlot::PlotLine(label, places.data(), shares.data(), static_cast<int>(places.size()), spec);
}

void draw_survival(const PanelContext& context, const DraftTotals& totals, ImVec2 size) {
  ImPlot::PushStyleVar(ImPlotStyleVar_PlotPadding, ImVec2(4.0F, 4.0F));
  constexpr ImPlotFlags kFlags = ImPlotFlags_NoMenus | ImPlotFlags_NoBoxSelect;
  if (ImPlot::BeginPlot("share accepted at each position###survival", size, kFlags)) {
    ImPlot::SetupAxes(nullptr, nullptr);
    const auto last = static_cast<double>(totals.trace.survived.size()) - 1.0;
    ImPlot::SetupAxesLimits(0.5, last + 0.5, 0.0, 1.05, ImPlotCond_Always);
    ImPlot::SetupLegend(ImPlotLocation_NorthEast);
    whole_numbers(ImAxis_X1);
    constexpr std::array<double, 3> kShares = {0.0, 0.5, 1.0};
    ImPlot::SetupAxisTicks(ImAxis_Y1, kShares.data(), static_cast<int>(kShares.size()));
    const auto sequence = static_cast<std::size_t>(context.model.block()->sequence);
    const bool both = context.model.overview()->info.num_sequences > 1;
    plot_survival("trace", totals.trace, both ? kNoValueColour : kAcceptedColour, context.scale);
    if (both && sequence < totals.sequences.size()) {
      plot_survival("this sequence", totals.sequences[sequence], kAcceptedColour, context.scale);
    }
    ImPlot::EndPlot();
  }
  ImPlot::PopStyleVar();
}

void draw_head(PanelContext& context, const std::shared_ptr<const ShownRounds>& rounds) {
  DraftState& state = context.state.of<DraftState>();
  draw_draft_controls(context);
  const auto totals = request_draft_totals(context.model);
  if (!ready_or_explain(totals)) return;
  draw_summary(context, *totals.value, *rounds);
  if (state.answer) {
    draw_answer_legend(context, *rounds);
  } else {
    draw_rounds_legend(context, values_of(state, rounds));
  }
}

/// Controls, numbers and legend. The plot of acceptance is to their right, or below in a narrow
/// panel.
void draw_head_and_plot(PanelContext& context, const std::shared_ptr<const ShownRounds>& rounds) {
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const float scale = context.scale;
  const auto totals = request_draft_totals(context.model);
  const bool plot = totals.value && space.y > 300.0F * scale;
  const float wide = 280.0F * scale;
  if (!plot || space.x < 2.4F * wide) {
    draw_head(context, rounds);
    if (plot && space.y > 480.0F * scale) {
      draw_survival(context, *totals.value, ImVec2(-1.0F, 110.0F * scale));
    }
    return;
  }
  const float top = ImGui::GetCursorPosY();
  if (ImGui::BeginTable("head", 2)) {
    ImGui::TableSetupColumn("numbers", ImGuiTableColumnFlags_WidthStretch);
    ImGui::TableSetupColumn("plot", ImGuiTableColumnFlags_WidthFixed, wide);
    ImGui::TableNextColumn();
    draw_head(context, rounds);
    const float used = ImGui::GetCursorPosY() - top;
    ImGui::TableNextColumn();
    draw_survival(context, *totals.value, ImVec2(wide, std::max(used, 126.0F * scale)));
    ImGui::EndTable();
  }
}

/// Why the panel has nothing to show; empty if it has.
std::string nothing_to_show(const ViewModel& model) {
  const Overview* overview = model.overview();
  if (overview == nullptr) return "No trace is open.";
  const TraceMeta& meta = overview->info.meta;
  if (!meta.has_draft) {
    return "This trace was captured without a draft (capture TARGET --draft DRAFT).";
  }
  if (meta.block_length < 2) return "Nothing was drafted: the blocks have one position.";
  if (model.step() == nullptr) return "The trace holds no round yet.";
  return "";
}

/// Whether the trace was captured with a draft.
bool fits_draft_panel(const ViewModel& model) {
  return model.overview() != nullptr && model.overview()->info.meta.has_draft;
}

void draw_draft_panel(PanelContext& context) {
  const std::string why = nothing_to_show(context.model);
  if (!why.empty()) return explain_missing(why);
  const auto data = request_shown_rounds(context.model);
  if (!ready_or_explain(data)) return;
  draw_head_and_plot(context, data.value);
  if (context.state.of<DraftState>().answer) {
    draw_draft_answer(context, data.value);
  } else {
    draw_draft_rounds(context, *data.value);
  }
}

std::optional<CsvTable> draft_panel_table(PanelContext& context) {
  if (!fits_draft_panel(context.model) || context.model.step() == nullptr) return std::nullopt;
  const auto data = request_shown_rounds(context.model);
  if (!data.value || data.value->rounds.empty()) return std::nullopt;
  return context.state.of<DraftState>().answer ? draft_answer_table(*data.value)
                                               : draft_rounds_table(*data.value);
}

/// Names of the colours of the rounds; the last word shows the answer instead.
std::vector<std::string_view> draft_words() {
  std::vector<std::string_view> words;
  for (std::size_t i = 0; i < kDraftColours; ++i) {
    words.push_back(info_of(static_cast<DraftColour>(i)).name);
  }
  words.emplace_back("answer");
  return words;
}

void show_draft(PanelStates& states, std::size_t word) {
  DraftState& state = states.of<DraftState>();
  state.answer = word == kDraftColours;
  if (!state.answer) state.colour = static_cast<DraftColour>(word);
}

}  // namespace

Colour behind_colour() { return ImGui::GetColorU32(ImGuiCol_Text, 0.13F); }

Colour colour_of_rank_class(std::size_t index, const Colormap& map) {
  return map.at(static_cast<float>(kRankClasses - 1 - index), 0.0F,
                static_cast<float>(kRankClasses - 1));
}

Colour colour_of_value(float value, Scale scale, float largest, const Colormap& map) {
  if (scale == Scale::rank) return colour_of_rank_class(rank_class(value), map);
  return map.at(value, 0.0F, scale == Scale::entropy ? std::max(largest, 1e-6F) : 1.0F);
}

void follow_selection(PanelContext& context, std::size_t line, float line_height, float covered) {
  DraftState& state = context.state.of<DraftState>();
  const std::int64_t row = context.model.step()->row;
  if (state.shown_row == row) return;
  state.shown_row = row;
  const float y = static_cast<float>(line) * line_height;
  const float height = ImGui::GetWindowHeight() - covered;
  if (y >= ImGui::GetScrollY() && y + line_height <= ImGui::GetScrollY() + height) return;
  ImGui::SetScrollY(std::max(0.0F, y - (height - line_height) / 2));
}

Panel draft_panel() {
  return {.name = "Draft",
          .draw = draw_draft_panel,
          .table = draft_panel_table,
          .fits = fits_draft_panel,
          .show = {.words = draft_words(), .take_word = show_draft}};
}

}  // namespace blockscope
