// The Selection panel marks keys in the text of the prefix: those that a sparse policy read, and
// those that exact attention would choose (MAGE, eq. 1). For every trace with sets, it also
// compares the exact set with that of the block's first step.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/math/position_sets.h"
#include "viewer/panels/selection_parts.h"

namespace blockscope {
namespace {

constexpr std::array<const char*, 2> kAgainst = {"keys read, exact set",
                                                 "step 1's set, this step's"};

/// Puts the next widget on the current line, or on a new one if the line has no room.
void next(float width, float scale) {
  ImGui::SameLine(0.0F, 14.0F * scale);
  if (ImGui::GetContentRegionAvail().x < width) ImGui::NewLine();
}

void next_line_unless_it_fits(const std::string& text) {
  if (ImGui::GetContentRegionAvail().x < ImGui::CalcTextSize(text.c_str()).x) ImGui::NewLine();
}

std::string number(double value) { return std::isnan(value) ? "-" : fmt::format("{:.3f}", value); }

const KeyView& view_of(SelectionState& state, const std::shared_ptr<const StepKeys>& keys) {
  if (state.view_of != keys || state.view_against != state.against || state.view_k != state.k) {
    state.view = compare_keys(*keys, state.against, static_cast<std::size_t>(state.k));
    state.view_of = keys;
    state.view_against = state.against;
    state.view_k = state.k;
  }
  return state.view;
}

void pick_sets(PanelContext& context, const StepKeys& keys) {
  SelectionState& state = context.state.of<SelectionState>();
  int against = static_cast<int>(possible(keys, state.against));
  const bool both = possible(keys, KeysAgainst::read) != possible(keys, KeysAgainst::first);
  ImGui::BeginDisabled(!both);
  ImGui::SetNextItemWidth(190.0F * context.scale);
  if (ImGui::Combo("##against", &against, kAgainst.data(), static_cast<int>(kAgainst.size()))) {
    state.against = static_cast<KeysAgainst>(against);
  }
  ImGui::EndDisabled();
  const auto most = static_cast<int>(keys.exact.size());
  if (static_cast<KeysAgainst>(against) != KeysAgainst::first || most < 2) return;
  next(140.0F * context.scale, context.scale);
  ImGui::SetNextItemWidth(120.0F * context.scale);
  int k = state.k == 0 ? most : std::min(state.k, most);
  if (ImGui::SliderInt("##k", &k, 1, most, "k = %d")) state.k = k == most ? 0 : k;
}

/// Buttons that jump to the previous and the next marked key.
void jump(PanelContext& context, const KeyView& view) {
  SelectionState& state = context.state.of<SelectionState>();
  std::vector<std::int32_t> places;
  for (const ComparedKey& key : view.sets.keys) {
    if (state.jump == 0 || static_cast<int>(key.mark) + 1 == state.jump) {
      places.push_back(key.position);
    }
  }
  const std::array<std::string, 4> names = {"any mark", name_of(KeyMark::both, view),
                                            name_of(KeyMark::exact_only, view),
                                            name_of(KeyMark::chosen_only, view)};
  next(230.0F * context.scale, context.scale);
  ImGui::AlignTextToFramePadding();
  ImGui::TextUnformatted("go to");
  ImGui::SameLine();
  ImGui::SetNextItemWidth(90.0F * context.scale);
  if (ImGui::BeginCombo("##jump", names.at(static_cast<std::size_t>(state.jump)).c_str())) {
    const auto entries = static_cast<int>(view.compares ? names.size() : 1);
    for (int i = 0; i < entries; ++i) {
      if (ImGui::Selectable(names.at(static_cast<std::size_t>(i)).c_str(), i == state.jump)) {
        state.jump = i;
      }
    }
    ImGui::EndCombo();
  }
  ImGui::BeginDisabled(places.empty());
  ImGui::SameLine();
  const bool back = ImGui::ArrowButton("##before", ImGuiDir_Left);
  ImGui::SameLine();
  const bool forward = ImGui::ArrowButton("##behind", ImGuiDir_Right);
  ImGui::EndDisabled();
  const std::int32_t at = state.at.value_or(back ? RankTable::kMaxPosition : -1);
  if (!places.empty() && (back || forward)) {  // wraps around at both ends
    auto place = back ? std::ranges::lower_bound(places, at) : std::ranges::upper_bound(places, at);
    if (back) {
      place = std::prev(place == places.begin() ? places.end() : place);
    } else if (place == places.end()) {
      place = places.begin();
    }
    state.at = state.scroll_to = *place;
  }
  const auto shown = state.at ? std::ranges::find(places, *state.at) : places.end();
  ImGui::SameLine();
  if (shown == places.end()) {
    ImGui::TextDisabled("%zu", places.size());
  } else {
    ImGui::TextDisabled("%td of %zu", shown - places.begin() + 1, places.size());
  }
}

/// One sentence that says what the step read.
std::string headline(const PanelContext& context, const StepKeys& keys, const KeyView& view) {
  const ViewModel& model = context.model;
  const std::int64_t layer = model.overview()->info.meta.layers[model.selection().layer];
  const std::int32_t step = model.step()->step;
  const std::string where = fmt::format("Layer {}, KV head {}: ", layer, keys.kv_head);
  if (view.against == KeysAgainst::first) {
    if (step == 1) {
      return where + fmt::format("step 1, the reference for the other steps: {} of {} keys",
                                 view.sets.compared, keys.external_keys);
    }
    return where + fmt::format("the exact sets of steps 1 and {1}, each with {0} of {2} keys",
                               view.sets.compared, step, keys.external_keys);
  }
  const std::string marked =
      view.sets.compared > 0
          ? fmt::format("; marked: the {} most probable keys of the exact set", view.sets.compared)
          : "";
  switch (keys.read) {
    case KeysRead::everything:
      return where +
             fmt::format("step {} read its whole prefix of {} keys", step, keys.external_keys) +
             marked;
    case KeysRead::nothing:
      return where +
             fmt::format("step {} read none of the {} keys of its prefix", step,
                         keys.external_keys) +
             marked;
    case KeysRead::some:
    case KeysRead::unknown:
      break;
  }
  return where + fmt::format("step {} read {} of {} keys{}", step, keys.selected.size(),
                             keys.external_keys,
                             keys.exact.empty() ? "; this trace has no exact sets (--shadow "
                                                  "--record sets)"
                                                : "");
}

void draw_legend(const KeyView& view, SetNormaliser normaliser, float scale) {
  const SetComparison& sets = view.sets;
  const bool read = view.against == KeysAgainst::read;
  const auto entry = [&](KeyMark mark, std::int64_t count, const char* what) {
    draw_legend_entry(mark, fmt::format("{} {}{}", count, name_of(mark, view), what), scale);
  };
  if (!view.compares) {
    for (const auto& [mark, count] :
         {std::pair{KeyMark::both, sets.hits}, std::pair{KeyMark::exact_only, sets.misses},
          std::pair{KeyMark::chosen_only, sets.extra}}) {
      if (count > 0) entry(mark, count, "");
    }
  } else {
    entry(KeyMark::both, sets.hits, " (in both)");
    entry(KeyMark::exact_only, sets.misses, read ? " (exact only)" : " (this step only)");
    entry(KeyMark::chosen_only, sets.extra, read ? " (read only)" : " (step 1 only)");
    const std::string accuracy =
        fmt::format("{} {}", read ? "block accuracy" : "recall", number(sets.accuracy()));
    next_line_unless_it_fits(accuracy);
    ImGui::TextUnformatted(accuracy.c_str());
    ImGui::SameLine(0.0F, 18.0F * scale);
  }
  if (sets.compared > 0 && std::isfinite(view.exact_share)) {
    const std::string share = fmt::format(
        "the {} exact keys hold {} of the probability of the prefix{}", sets.compared,
        number(view.exact_share), normaliser == SetNormaliser::prefix ? "" : " and the block");
    next_line_unless_it_fits(share);
    ImGui::TextDisabled("%s", share.c_str());
  } else {
    ImGui::NewLine();
  }
}

/// Query heads as columns: the probability on the keys read, and the output error.
void draw_heads(const PanelContext& context, const StepKeys& keys) {
  const bool known =
      std::ranges::any_of(keys.heads, [](const auto& head) { return head.covered.has_value(); });
  if (!known || keys.read == KeysRead::everything) return;
  const TraceMeta& meta = context.model.overview()->info.meta;
  const std::int64_t selected = meta.heads[context.model.selection().head];
  const auto columns = static_cast<int>(keys.heads.size()) + 1;
  if (!ImGui::BeginTable("heads", columns,
                         ImGuiTableFlags_SizingFixedFit | ImGuiTableFlags_NoHostExtendX)) {
    return;
  }
  const auto row = [&](const char* name, auto text) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    ImGui::TextDisabled("%s", name);
    for (const StepKeys::Head& head : keys.heads) {
      ImGui::TableNextColumn();
      if (head.head == selected) {
        ImGui::TextUnformatted(text(head).c_str());
      } else {
        ImGui::TextDisabled("%s", text(head).c_str());
      }
    }
  };
  row("query head", [](const auto& head) { return fmt::format("{}", head.head); });
  row("probability read", [](const auto& head) { return number(head.covered.value_or(NAN)); });
  row("output error", [](const auto& head) { return number(head.error.value_or(NAN)); });
  ImGui::EndTable();
}

/// Why no key can be marked; nullopt if keys can.
std::optional<std::string> nothing_to_show(const TraceMeta& meta, const StepKeys& keys) {
  const bool sets = meta.level >= RecordLevel::sets && meta.set_size > 0;
  if (meta.selected_size == 0 && !sets) {
    return "This trace has neither a sparse policy's sets (--policy mage,k=512) nor exact top-k "
           "sets (--record sets).";
  }
  if (keys.context_length == 0) return "This block has no prefix.";
  if (keys.read != KeysRead::unknown || !keys.exact.empty()) return std::nullopt;
  return "Nothing was recorded for this step.";
}

void draw_selection_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.step() == nullptr) return explain_missing("No denoising step is selected.");
  const auto text = request_prefix_text(model);
  const auto data = request_step_keys(model);
  if (!ready_or_explain(data) || !ready_or_explain(text)) return;
  const StepKeys& keys = *data.value;
  if (const auto why = nothing_to_show(model.overview()->info.meta, keys)) {
    return explain_missing(*why);
  }
  const KeyView& view = view_of(context.state.of<SelectionState>(), data.value);
  pick_sets(context, keys);
  jump(context, view);
  ImGui::PushTextWrapPos(0.0F);
  ImGui::TextUnformatted(headline(context, keys, view).c_str());
  ImGui::PopTextWrapPos();
  draw_legend(view, model.overview()->info.meta.set_normaliser, context.scale);
  if (view.against == KeysAgainst::read) draw_heads(context, keys);
  ImGui::Spacing();
  draw_prefix(context, keys, view, text.value);
}

std::optional<CsvTable> selection_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr) return std::nullopt;
  const auto text = request_prefix_text(context.model);
  const auto keys = request_step_keys(context.model);
  const SelectionState& state = context.state.of<SelectionState>();
  if (!text.value || !keys.value) return std::nullopt;
  const KeyView view = compare_keys(*keys.value, state.against, static_cast<std::size_t>(state.k));
  if (view.sets.keys.empty()) return std::nullopt;
  return step_keys_table(*keys.value, view, *text.value);
}

void show_selection(PanelStates& states, std::size_t against) {
  states.of<SelectionState>().against = static_cast<KeysAgainst>(against);
}

}  // namespace

Panel selection_panel() {
  return {.name = "Selection",
          .draw = draw_selection_panel,
          .table = selection_panel_table,
          .show = {.words = {"read", "first"}, .take_word = show_selection}};
}

}  // namespace blockscope
