// What surrounds the panels: menu, status line, popups and keys.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_internal.h>

#include <algorithm>
#include <utility>

#include "viewer/app.h"

namespace blockscope {

void App::draw_menu() {
  if (!ImGui::BeginMainMenuBar()) return;
  if (ImGui::BeginMenu("Trace")) {
    draw_open_menu();
    ImGui::Separator();
    for (std::size_t i = 0; i < model_.documents().size(); ++i) {
      const OpenDocument& document = model_.documents()[i];
      if (document.state == OpenState::failed) continue;
      if (ImGui::MenuItem(fmt::format("{}{}###trace{}", document.path,
                                      document.fault != FileFault::none
                                          ? fmt::format(" ({})", name_of(document.fault))
                                      : document.live ? " (being written)"
                                                      : "",
                                      i)
                              .c_str(),
                          nullptr, i == model_.selection().trace)) {
        Selection first;
        first.trace = i;
        model_.select(first);
      }
    }
    ImGui::Separator();
    if (ImGui::MenuItem("Close", "Ctrl+W")) close_trace();
    if (ImGui::MenuItem("Quit", "Ctrl+Q")) screen_->close();
    ImGui::EndMenu();
  }
  if (ImGui::BeginMenu("View")) {
    for (Panel& panel : panels_) {
      ImGui::MenuItem(panel.name, nullptr, &panel.visible, fits(panel));
    }
    ImGui::Separator();
    ImGui::MenuItem("Dark", "D", &appearance_.dark);
    if (ImGui::MenuItem("Default layout")) layout_pending_ = true;
    ImGui::EndMenu();
  }
  if (ImGui::BeginMenu("Colours")) {
    for (const std::string_view name : kColormapNames) {
      for (const char* suffix : {"", "_r"}) {
        const std::string full = std::string(name) + suffix;
        if (ImGui::MenuItem(full.c_str(), nullptr, full == appearance_.map)) appearance_.map = full;
      }
    }
    ImGui::EndMenu();
  }
  if (ImGui::MenuItem("Help")) help_ = !help_;
  ImGui::EndMainMenuBar();
}

void App::draw_status() {
  const ImGuiWindowFlags flags =
      ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_MenuBar;
  if (!ImGui::BeginViewportSideBar("##status", nullptr, ImGuiDir_Down, ImGui::GetFrameHeight(),
                                   flags)) {
    return ImGui::End();
  }
  if (ImGui::BeginMenuBar()) {
    const Overview* overview = model_.overview();
    const StepRef* step = model_.step();
    if (overview == nullptr) {
      ImGui::TextUnformatted(opening()         ? "opening ..."
                             : options_.served ? "Ctrl+O lists the traces"
                                               : "drop a trace onto this window");
    } else if (step != nullptr) {
      const TraceMeta& meta = overview->info.meta;
      const auto sequence = static_cast<std::size_t>(step->sequence);
      const std::string& name = sequence < overview->sequence_names.size()
                                    ? overview->sequence_names[sequence]
                                    : std::string();
      ImGui::Text(
          "sequence %lld %s | block %d | step %d of %zu | layer %lld | head %lld | N %d | "
          "M %d | undecided %d",
          static_cast<long long>(step->sequence), name.c_str(), step->block, step->step,
          model_.block()->steps.size(),
          static_cast<long long>(meta.layers[model_.selection().layer]),
          static_cast<long long>(meta.heads[model_.selection().head]), step->context_length,
          step->changed, step->masks_left);
    }
    draw_faults();
    const char* right = model_.data().busy() ? "loading ..." : "F1 help";
    const float cache = ImGui::CalcTextSize("cache 00000 / 00000 MiB").x;
    const float wide = ImGui::GetWindowWidth();
    const float at = wide - ImGui::CalcTextSize("loading ...").x - cache - 50.0F * screen_->scale();
    if (ImGui::GetCursorPosX() < at) {  // a narrow window has room for the selection only
      ImGui::SetCursorPosX(at);
      draw_cache();
      ImGui::SetCursorPosX(wide - ImGui::CalcTextSize(right).x - 12.0F * screen_->scale());
      ImGui::TextDisabled("%s", right);
    }
    ImGui::EndMenuBar();
  }
  ImGui::End();
}

/// Badges of the active trace: still being written, or no longer the file that was opened.
void App::draw_faults() {
  if (model_.overview() == nullptr) return;
  const std::size_t active = model_.selection().trace;
  const OpenDocument& document = model_.documents()[active];
  if (document.live) {
    bool follow = model_.follow();
    ImGui::TextColored(ImVec4(0.25F, 0.75F, 0.4F, 1.0F), "| being written");
    if (ImGui::Checkbox("follow", &follow)) model_.set_follow(follow);
  }
  if (document.fault == FileFault::none) return;
  ImGui::TextColored(ImVec4(0.95F, 0.45F, 0.2F, 1.0F), "| file %s", name_of(document.fault));
  if (ImGui::SmallButton("Reopen")) model_.reopen(active);
}

void App::draw_cache() {
  constexpr double kMiB = 1024.0 * 1024.0;
  DataService& data = model_.data();
  const std::string label = fmt::format("cache {:.0f} / {:.0f} MiB###cache",
                                        static_cast<double>(data.cached_bytes()) / kMiB,
                                        static_cast<double>(data.budget_bytes()) / kMiB);
  if (!ImGui::BeginMenu(label.c_str())) return;
  int mib = static_cast<int>(data.budget_bytes() >> 20U);
  ImGui::SetNextItemWidth(140.0F * screen_->scale());
  if (ImGui::InputInt("MiB to keep##cache-mib", &mib, 64, 256)) {
    data.set_budget(static_cast<std::size_t>(std::clamp(mib, 16, 65536)) << 20U);
  }
  ImGui::EndMenu();
}

void App::draw_problem() {
  if (!model_.problems().empty() && !ImGui::IsPopupOpen("Problem")) ImGui::OpenPopup("Problem");
  ImGui::SetNextWindowSize(ImVec2(520.0F * screen_->scale(), 0.0F), ImGuiCond_Appearing);
  if (!ImGui::BeginPopupModal("Problem", nullptr, ImGuiWindowFlags_NoSavedSettings)) return;
  if (!model_.problems().empty()) ImGui::TextWrapped("%s", model_.problems().front().c_str());
  ImGui::Spacing();
  const std::size_t active = model_.selection().trace;
  if (model_.overview() != nullptr && model_.documents()[active].fault != FileFault::none) {
    if (ImGui::Button("Reopen")) {
      model_.reopen(active);
      model_.pop_problem();
      ImGui::CloseCurrentPopup();
    }
    ImGui::SameLine();
  }
  if (ImGui::Button("OK") || model_.problems().empty() ||
      ImGui::IsKeyPressed(ImGuiKey_Escape, false)) {
    model_.pop_problem();
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
}

void App::draw_help() {
  if (!help_) return;
  if (ImGui::Begin("Keys", &help_, ImGuiWindowFlags_AlwaysAutoResize)) {
    std::vector<std::pair<const char*, const char*>> keys = {
        {"Left, Right", "one denoising step back, forward"},
        {"Space", "play, pause"},
        {"Up, Down", "layer"},
        {"[ and ]", "head"},
        {"PageUp, PageDown", "block"},
        {"D", "dark or light"},
        {"C", "next colour map"}};
    for (const Panel& panel : panels_) {
      keys.insert(keys.end(), panel.key_help.begin(), panel.key_help.end());
    }
    keys.insert(keys.end(), {{"Ctrl+O", "open a trace"},
                             {"Ctrl+W, Ctrl+Q", "close the trace, quit"},
                             {"F1", "this list"}});
    if (ImGui::BeginTable("keys", 2, ImGuiTableFlags_SizingFixedFit)) {
      for (const auto& [key, what] : keys) {
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(key);
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(what);
      }
      ImGui::EndTable();
    }
  }
  ImGui::End();
}

void App::shortcuts() {
  const ImGuiIO& io = ImGui::GetIO();
  if (io.WantTextInput) return;
  const auto pressed = [](ImGuiKey key) { return ImGui::IsKeyPressed(key); };
  if (io.KeyCtrl) {
    if (pressed(ImGuiKey_Q)) screen_->close();
    if (pressed(ImGuiKey_O)) open_asked_ = true;
    if (pressed(ImGuiKey_W)) close_trace();
    PanelContext now = context();
    for (const Panel& panel : panels_) {
      if (panel.control_keys != nullptr) panel.control_keys(now);
    }
    return;
  }
  if (pressed(ImGuiKey_F1)) help_ = !help_;
  if (pressed(ImGuiKey_D)) appearance_.dark = !appearance_.dark;
  if (pressed(ImGuiKey_Space)) state_.playback.playing = !state_.playback.playing;
  if (pressed(ImGuiKey_C)) {
    const auto found = std::ranges::find(kColormapNames, std::string_view(appearance_.map));
    const auto next = found == kColormapNames.end() ? 0 : found - kColormapNames.begin() + 1;
    appearance_.map = kColormapNames[static_cast<std::size_t>(next) % kColormapNames.size()];
  }
  if (model_.overview() == nullptr) return;
  if (pressed(ImGuiKey_RightArrow)) model_.move_step(1);
  if (pressed(ImGuiKey_LeftArrow)) model_.move_step(-1);
  Selection selection = model_.selection();
  if (pressed(ImGuiKey_DownArrow)) selection.layer += 1;
  if (pressed(ImGuiKey_UpArrow) && selection.layer > 0) selection.layer -= 1;
  if (pressed(ImGuiKey_RightBracket)) selection.head += 1;
  if (pressed(ImGuiKey_LeftBracket) && selection.head > 0) selection.head -= 1;
  if (pressed(ImGuiKey_PageDown)) selection.block += 1;
  if (pressed(ImGuiKey_PageUp) && selection.block > 0) selection.block -= 1;
  if (selection.block != model_.selection().block) selection.step = 0;
  if (selection != model_.selection()) model_.select(selection);
}

}  // namespace blockscope
