// Opening traces: a path with completions (the only way over SSH), the desktop's dialog, recent
// files. Also what the viewer remembers from run to run.
#include <fmt/format.h>
#include <imgui.h>
#include <misc/cpp/imgui_stdlib.h>

#include <filesystem>

#include "viewer/app.h"

namespace blockscope {

void App::draw_open_menu() {
  if (ImGui::MenuItem("Open ...", "Ctrl+O")) open_asked_ = true;
  if (ImGui::BeginMenu("Open recent", !settings_.recent.empty())) {
    for (const std::string& path : settings_.recent) {
      std::error_code ignored;
      const bool there = std::filesystem::exists(path, ignored) ||
                         std::filesystem::exists(path + ".partial", ignored);
      const std::string label = there ? path : fmt::format("{} (missing)###{}", path, path);
      if (ImGui::MenuItem(label.c_str(), nullptr, false, there)) model_.open(path);
    }
    ImGui::EndMenu();
  }
  const std::size_t active = model_.selection().trace;
  const bool any = model_.overview() != nullptr;
  if (ImGui::MenuItem("Reopen", nullptr, false, any)) model_.reopen(active);
}

void App::draw_open() {
  if (file_dialog_) {
    if (const auto chosen = file_dialog_->poll()) {
      for (const std::string& path : *chosen) model_.open(path);
      file_dialog_.reset();
    }
  }
  if (open_asked_) {
    open_asked_ = false;
    ImGui::OpenPopup("Open trace");
  }
  ImGui::SetNextWindowSize(ImVec2(620.0F * window_.scale(), 0.0F), ImGuiCond_Appearing);
  if (!ImGui::BeginPopupModal("Open trace", nullptr, ImGuiWindowFlags_NoSavedSettings)) return;
  if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-1.0F);
  bool open = ImGui::InputText("##open-path", &open_path_, ImGuiInputTextFlags_EnterReturnsTrue);
  std::error_code ignored;
  ImGui::TextDisabled("in %s", std::filesystem::current_path(ignored).c_str());
  // Reading a folder in every frame would make typing slow on a network disk.
  if (open_path_ != completed_path_ || ImGui::IsWindowAppearing()) {
    completed_path_ = open_path_;
    completions_ = complete_path(open_path_);
  }
  if (ImGui::BeginChild("##completions",
                        ImVec2(0.0F, 10.0F * ImGui::GetTextLineHeightWithSpacing()),
                        ImGuiChildFlags_Borders)) {
    for (const std::string& path : completions_) {
      if (ImGui::Selectable(path.c_str())) open_path_ = path;
    }
    if (completions_.empty()) ImGui::TextDisabled("no folder or trace begins like this");
  }
  ImGui::EndChild();
  open = ImGui::Button("Open") || open;
  ImGui::SameLine();
  bool close = ImGui::Button("Cancel") || ImGui::IsKeyPressed(ImGuiKey_Escape, false);
  if (FileDialog::available()) {
    ImGui::SameLine();
    if (ImGui::Button("Browse ...") && !file_dialog_) {
      file_dialog_ = std::make_unique<FileDialog>();
      close = true;
    }
  }
  if (open && !open_path_.empty()) {
    model_.open(open_path_);
    close = true;
  }
  if (close) ImGui::CloseCurrentPopup();
  ImGui::EndPopup();
}

void App::note_opened() {
  noted_.resize(model_.documents().size(), false);
  bool news = false;
  for (std::size_t i = 0; i < noted_.size(); ++i) {
    if (noted_[i] || model_.documents()[i].state != OpenState::open) continue;
    noted_[i] = news = true;
    settings_.add_recent(model_.documents()[i].path);
  }
  if (!news || options_.config_folder.empty()) return;
  try {
    remember();
  } catch (const std::exception& error) {
    model_.add_problem(error.what());
    options_.config_folder.clear();  // report it once
  }
}

void App::remember() {
  if (options_.config_folder.empty()) return;
  settings_.appearance = appearance_;
  settings_.cache_mib = model_.data().budget_bytes() >> 20U;
  save_settings(settings_, options_.config_folder);
}

}  // namespace blockscope
