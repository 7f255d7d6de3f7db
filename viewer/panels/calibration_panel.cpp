// The Calibration panel: chosen traces, gamma and tau, predicted savings and errors, and the file.
// CalibrationEdit holds the state and computes every number.
#include <fmt/format.h>
#include <imgui.h>
#include <misc/cpp/imgui_stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope {
namespace {

using State = CalibrationState;

/// A larger read needs the user's consent, because it takes long and the other panels wait for it.
constexpr std::int64_t kAskAboveBytes = std::int64_t{1} << 30;
constexpr const char* kReplacePopup = "Replace the file?###replace-calibration";

bool in_all(const CalibrationSource& source, const State& state) {
  return source.missing.empty() && !state.left_out.contains(source.trace);
}

/// Finds the usable traces. Not in every frame, because it parses their JSON: only after a trace
/// was opened, closed or has grown.
void look_at_traces(const ViewModel& model, State& state) {
  std::vector<std::shared_ptr<const Overview>> seen;
  for (const OpenDocument& document : model.documents()) seen.push_back(document.overview);
  seen.push_back(seen[model.selection().trace]);
  if (seen == state.seen) return;
  state.seen = std::move(seen);
  state.available = calibration_sources(model);
  state.model = reuse_model_of(model.overview()->info.meta);
}

/// Keeps the requested traces while they only grow, so a live trace doesn't restart the pass again
/// and again. Returns true if they have new rows.
bool keep_sources(State& state) {
  const std::vector<CalibrationSource>& now = state.available;
  const auto same_trace = [](const CalibrationSource& a, const CalibrationSource& b) {
    return a.trace == b.trace && a.missing.empty() == b.missing.empty();
  };
  if (!std::ranges::equal(now, state.sources, same_trace)) {
    state.sources = now;
    state.stopped = false;
  }
  return now != state.sources;  // a trace has new rows
}

void draw_sources(const ViewModel& model, State& state, bool news) {
  const auto used = std::ranges::count_if(
      state.sources, [&](const CalibrationSource& source) { return in_all(source, state); });
  const std::string title =
      fmt::format("uses {} of {}: those of this model with exact values###calibration-traces", used,
                  plural(static_cast<std::int64_t>(state.sources.size()), "open trace"));
  if (news && ImGui::SmallButton("Read new rows")) state.sources.clear();
  if (!ImGui::TreeNode(title.c_str())) return;
  for (const CalibrationSource& source : state.sources) {
    bool use = in_all(source, state);
    ImGui::BeginDisabled(!source.missing.empty());
    const std::string& path = model.documents()[source.trace].path;
    if (ImGui::Checkbox(fmt::format("{}###calibration-trace{}", path, source.trace).c_str(),
                        &use)) {
      if (use) {
        state.left_out.erase(source.trace);
      } else {
        state.left_out.insert(source.trace);
      }
    }
    ImGui::EndDisabled();
    if (!source.missing.empty()) explain_missing(source.missing);
  }
  ImGui::Checkbox("from summaries###calibration-summaries", &state.from_summary);
  ImGui::SetItemTooltip("reads /summary even if the trace has the arrays (--from-summary)");
  ImGui::TreePop();
}

/// The sums over the chosen traces. Without sums, draws the reason and returns nullptr.
std::shared_ptr<const CalibrationSums> obtain_sums(ViewModel& model, State& state,
                                                   const CalibrationChoice& choice) {
  std::vector<CalibrationSource> used;
  std::int64_t bytes = 0;
  for (const CalibrationSource& source : state.sources) {
    if (!in_all(source, state)) continue;
    used.push_back(source);
    const auto& overview = model.documents()[source.trace].overview;
    if (overview) bytes += overview->info.file_bytes;
  }
  if (used.empty()) {
    explain_missing("No open trace is chosen.");
    return nullptr;
  }
  if (bytes > kAskAboveBytes && !state.from_summary && !state.large_accepted) {
    explain_missing(fmt::format(
        "A calibration reads the attention of all steps, up to {:.1f} GiB. The other panels wait "
        "for it. Summaries are much smaller, but have the error only at tau 2, 3 and 4.",
        static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << 30)));
    if (ImGui::Button("Read it###calibration-read")) state.large_accepted = true;
    ImGui::SameLine();
    if (ImGui::Button("From summaries")) state.from_summary = true;
    return nullptr;
  }
  if (state.stopped) {
    ImGui::TextDisabled("Stopped.");
    ImGui::SameLine();
    if (ImGui::Button("Start###calibration-start")) state.stopped = false;
    return nullptr;
  }
  const auto data = request_calibration(model, used, choice, state.from_summary);
  if (data.state == DataState::loading) {
    if (ImGui::Button("Cancel###calibration-cancel")) {
      cancel_calibration(model);
      state.stopped = true;
    }
    ImGui::SameLine();
  }
  if (!ready_or_explain(data)) {
    if (data.state == DataState::failed && ImGui::Button("Try again###calibration-again")) {
      cancel_calibration(model);
    }
    return nullptr;
  }
  return data.value->sums;
}

/// One undo entry for a whole drag or typed number.
void after_slider(CalibrationEdit& edit, const CalibrationChoice& choice) {
  edit.preview(choice);
  if (ImGui::IsItemDeactivatedAfterEdit()) edit.commit();
}

void draw_gamma(const State& state, CalibrationEdit& edit, float scale) {
  CalibrationChoice choice = edit.choice();
  double low = 1.0;
  if (edit.sums() != nullptr) {
    for (const auto& matrix : edit.sums()->similarity) {
      for (const auto& row : matrix) {
        for (const double value : row) low = std::fmin(low, value);
      }
    }
  }
  low = std::floor(std::min(low, 0.99) * 100.0) / 100.0;
  const double high = 1.0;
  ImGui::BeginDisabled(edit.result() == nullptr);
  if (ImGui::Button("<###gamma-down")) edit.step_gamma(-1, state.range);
  ImGui::SetItemTooltip("the next smaller gamma that lets another head reuse");
  ImGui::SameLine();
  if (ImGui::Button(">###gamma-up")) edit.step_gamma(1, state.range);
  ImGui::SetItemTooltip("the next larger gamma that stops a head from reusing");
  ImGui::EndDisabled();
  ImGui::SameLine();
  choice = edit.choice();
  ImGui::SetNextItemWidth(-70.0F * scale);
  double gamma = choice.gamma_of(state.range.value_or(0));
  ImGui::SliderScalar("gamma###gamma", ImGuiDataType_Double, &gamma, &low, &high, "%.5f");
  ImGui::SetItemTooltip(
      "a head reuses if its similarity exceeds gamma; Ctrl+click: type a value from -1 to 1");
  // The slider rounds; a gamma that was not moved keeps all its digits.
  if (!ImGui::IsItemEdited() && !ImGui::IsItemDeactivatedAfterEdit()) return;
  choice.set_gamma(state.range, std::clamp(gamma, -1.0, 1.0));
  after_slider(edit, choice);
}

void draw_tau(CalibrationEdit& edit, float scale) {
  CalibrationChoice choice = edit.choice();
  const std::int64_t low = 1;
  const std::int64_t high = 4;
  ImGui::SetNextItemWidth(120.0F * scale);
  ImGui::SliderScalar("tau###tau", ImGuiDataType_S64, &choice.tau, &low, &high, "%lld");
  ImGui::SetItemTooltip(
      "heads reuse at steps before which fewer than tau tokens were counted; Ctrl+click: type a "
      "larger tau, "
      "which reads the traces again");
  choice.tau = std::max<std::int64_t>(1, choice.tau);
  after_slider(edit, choice);
  ImGui::SameLine();
  int granularity = static_cast<int>(edit.choice().granularity);
  ImGui::SetNextItemWidth(150.0F * scale);
  constexpr const char* kNames[] = {"each head", "whole KV heads"};
  if (ImGui::Combo("decide###granularity", &granularity, kNames, 2)) {
    choice = edit.choice();
    choice.granularity = static_cast<ReuseGranularity>(granularity);
    edit.change(choice);
  }
  ImGui::SetItemTooltip(
      "a KV head's bytes are saved only if all its query heads reuse; 'whole KV heads' makes all "
      "of them reuse, or none (--granularity kv-group)");
}

/// Runs a button's action; a failure becomes a popup.
template <typename Action>
bool attempt(ViewModel& model, const Action& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    model.add_problem(error.what());
    return false;
  }
}

void draw_targets(ViewModel& model, State& state, CalibrationEdit& edit, float scale) {
  ImGui::BeginDisabled(edit.result() == nullptr);
  ImGui::SetNextItemWidth(70.0F * scale);
  ImGui::InputDouble("###target-saving", &state.saving, 0.0, 0.0, "%.4g");
  ImGui::SameLine();
  if (ImGui::Button("% of bytes: set gamma###aim-saving")) {
    attempt(model, [&] { edit.aim_at_saving(state.saving / 100.0); });
  }
  ImGui::SetItemTooltip("the largest gamma that saves this share of the prefix bytes (--saving)");
  ImGui::SameLine();
  ImGui::SetNextItemWidth(70.0F * scale);
  ImGui::InputDouble("###target-error", &state.error, 0.0, 0.0, "%.4g");
  ImGui::SameLine();
  if (ImGui::Button("% error: set gamma###aim-error")) {
    attempt(model, [&] { edit.aim_at_error(state.error / 100.0); });
  }
  ImGui::SetItemTooltip(
      "the smallest gamma that keeps the error where reused (relative L2) within this "
      "(--max-error)");
  ImGui::EndDisabled();
}

void draw_edit_buttons(CalibrationEdit& edit) {
  ImGui::BeginDisabled(!edit.can_undo());
  if (ImGui::Button("Undo")) edit.undo();
  ImGui::EndDisabled();
  ImGui::SameLine();
  ImGui::BeginDisabled(!edit.can_redo());
  if (ImGui::Button("Redo")) edit.redo();
  ImGui::EndDisabled();
  ImGui::SameLine();
  ImGui::BeginDisabled(edit.choice().pins.empty());
  if (ImGui::Button("Unpin all")) edit.clear_pins();
  ImGui::EndDisabled();
}

const std::string& trace_path(const PanelContext& context) {
  return context.model.documents()[context.model.selection().trace].path;
}

/// The file that saving would write; empty for a download.
std::string place_of(PanelContext& context, const State& state) {
  std::string place;
  attempt(context.model, [&] { place = context.outlet.place(state.path, trace_path(context)); });
  return place;
}

void save(PanelContext& context, State& state, CalibrationEdit& edit, bool replace) {
  ViewModel& model = context.model;
  if (attempt(model, [&] {
        context.outlet.save(state.path, trace_path(context), [&](const std::string& path) {
          save_calibration(model, edit, path, replace);
        });
      })) {
    state.saved_path = place_of(context, state);
  }
}

/// Whether a file would be replaced that this viewer did not write.
bool would_replace(PanelContext& context, const State& state) {
  const std::string place = place_of(context, state);
  std::error_code ignored;
  return !place.empty() && place != state.saved_path && std::filesystem::exists(place, ignored);
}

void draw_file(PanelContext& context, State& state, CalibrationEdit& edit) {
  ViewModel& model = context.model;
  const float scale = context.scale;
  if (state.path.empty()) {
    const std::filesystem::path trace(model.documents()[model.selection().trace].path);
    state.path =
        context.outlet.takes_paths() ? (trace.parent_path() / "reuse.json").string() : "reuse.json";
  }
  ImGui::SetNextItemWidth(-190.0F * scale);
  ImGui::InputText("###calibration-path", &state.path);
  ImGui::SameLine();
  ImGui::BeginDisabled(edit.result() == nullptr);
  const bool clicked =
      ImGui::Button(edit.dirty() ? "Save *###calibration-save" : "Save###calibration-save");
  ImGui::SetItemTooltip("%s", edit.dirty() ? "saves the changes to the calibration file (Ctrl+S)"
                                           : "writes the calibration file (Ctrl+S)");
  ImGui::EndDisabled();
  ImGui::SameLine();
  if (ImGui::Button("Load###calibration-load")) {
    if (context.browser != nullptr) {
      context.browser->pick_file();
    } else {
      state.load_path = state.path;
    }
  }
  context.outlet.draw_choice();
  if (clicked || std::exchange(state.save_wanted, false)) {
    if (would_replace(context, state)) {
      ImGui::OpenPopup(kReplacePopup);
    } else {
      save(context, state, edit, place_of(context, state) == state.saved_path);
    }
  }
  ImGui::SetNextWindowSize(ImVec2(420.0F * scale, 0.0F), ImGuiCond_Appearing);
  if (!ImGui::BeginPopupModal(kReplacePopup, nullptr, ImGuiWindowFlags_NoSavedSettings)) return;
  ImGui::TextWrapped("%s already exists.", state.path.c_str());
  if (ImGui::Button("Replace")) {
    save(context, state, edit, true);
    ImGui::CloseCurrentPopup();
  }
  ImGui::SameLine();
  if (ImGui::Button("Keep it") || ImGui::IsKeyPressed(ImGuiKey_Escape, false)) {
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
}

void draw_pictures(PanelContext& context, CalibrationEdit& edit) {
  ImGui::TextDisabled("frame: the head reuses; dot: pinned to reuse; cross: pinned to recompute");
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const float spacing = ImGui::GetStyle().ItemSpacing.y;
  const float least = 170.0F * context.scale;
  const bool beside = space.x > 2.0F * std::max(space.y, 2.0F * least);
  const float width = beside ? (space.x - ImGui::GetStyle().ItemSpacing.x) / 2.0F : space.x;
  const float height = std::max(least, beside ? space.y : (space.y - spacing) / 2.0F);
  draw_calibration_grid(context, edit, width, height);
  if (beside) ImGui::SameLine();
  draw_calibration_curve(context, edit, width, height);
}

void draw_calibration_panel(PanelContext& context) {
  ViewModel& model = context.model;
  State& state = context.state.of<CalibrationState>();
  if (model.block() == nullptr) return explain_missing("No trace is open.");
  look_at_traces(model, state);
  const auto active =
      std::ranges::find(state.available, model.selection().trace, &CalibrationSource::trace);
  if (active != state.available.end() && !active->missing.empty()) {
    return explain_missing(active->missing);
  }
  CalibrationEdit* edit = active_calibration(model, state);
  if (edit == nullptr) return;
  state.last_frame = ImGui::GetFrameCount();
  draw_sources(model, state, keep_sources(state));
  edit->set_sums(obtain_sums(model, state, edit->choice()));
  draw_calibration_measure(model, state, *edit, context.scale);
  draw_gamma(state, *edit, context.scale);
  draw_tau(*edit, context.scale);
  draw_targets(model, state, *edit, context.scale);
  ImGui::SameLine();
  ImGui::Checkbox("FLOPs axis###against-flops", &state.against_flops);
  draw_edit_buttons(*edit);
  ImGui::SameLine();
  ImGui::Checkbox("mark in Heads###show-in-heads", &state.show_in_heads);
  draw_file(context, state, *edit);
  if (edit->sums() == nullptr) return;
  draw_calibration_result(*edit, context.appearance.dark);
  draw_pictures(context, *edit);
}

std::optional<CsvTable> calibration_panel_table(PanelContext& context) {
  const CalibrationEdit* edit =
      active_calibration(context.model, context.state.of<CalibrationState>());
  if (edit == nullptr || edit->result() == nullptr) return std::nullopt;
  return calibration_table(*edit);
}

/// Undo, redo and save, while the panel is on the screen.
void calibration_keys(PanelContext& context) {
  State& state = context.state.of<State>();
  CalibrationEdit* edit =
      calibration_in_use(state) ? active_calibration(context.model, state) : nullptr;
  if (edit == nullptr) return;
  const bool shift = ImGui::GetIO().KeyShift;
  if (ImGui::IsKeyPressed(ImGuiKey_Z)) shift ? edit->redo() : edit->undo();
  if (ImGui::IsKeyPressed(ImGuiKey_Y)) edit->redo();
  if (ImGui::IsKeyPressed(ImGuiKey_S, false)) state.save_wanted = true;
}

}  // namespace

CalibrationEdit* active_calibration(const ViewModel& model, State& state) {
  if (model.overview() == nullptr) return nullptr;
  look_at_traces(model, state);
  if (!state.model) return nullptr;
  return &state.edits.try_emplace(state.model->digest, *state.model).first->second;
}

bool calibration_in_use(const State& state) {
  return state.last_frame >= ImGui::GetFrameCount() - 1;
}

Panel calibration_panel() {
  return {.name = "Calibration",
          .draw = draw_calibration_panel,
          .table = calibration_panel_table,
          .control_keys = calibration_keys,
          .key_help = {{"Ctrl+Z, Ctrl+Shift+Z, Ctrl+Y", "calibration: undo, redo"},
                       {"Ctrl+S", "calibration: save"}}};
}

}  // namespace blockscope
