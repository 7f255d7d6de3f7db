// Opening traces: a path with completions (the only way over SSH), the desktop's dialog, recent
// files. Also what the viewer remembers from run to run.
#include <fmt/format.h>
#include <imgui.h>
#include <misc/cpp/imgui_stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "decode_record/base/error.h"
#include "viewer/app.h"
#include "viewer/model/selection_text.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope {

void App::draw_open_menu() {
  if (ImGui::MenuItem("Open ...", "Ctrl+O")) open_asked_ = true;
  if (!options_.served && ImGui::BeginMenu("Open recent", !settings_.recent.empty())) {
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
    if (options_.served) offered_ = options_.served->traces();
    ImGui::OpenPopup("Open trace");
  }
  ImGui::SetNextWindowSize(ImVec2(620.0F * screen_->scale(), 0.0F), ImGuiCond_Appearing);
  if (!ImGui::BeginPopupModal("Open trace", nullptr, ImGuiWindowFlags_NoSavedSettings)) return;
  if (options_.served) return draw_offered();
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

void App::draw_offered() {
  if (ImGui::BeginChild("##offered", ImVec2(0.0F, 16.0F * ImGui::GetTextLineHeightWithSpacing()),
                        ImGuiChildFlags_Borders)) {
    for (const std::string& path : offered_) {
      if (!ImGui::Selectable(fmt::format("{}###{}", short_name(path), path).c_str())) continue;
      model_.open(path);
      ImGui::CloseCurrentPopup();
    }
    if (offered_.empty()) ImGui::TextDisabled("the folder has no traces");
  }
  ImGui::EndChild();
  if (ImGui::Button("Cancel") || ImGui::IsKeyPressed(ImGuiKey_Escape, false)) {
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
}

std::string App::short_name(const std::string& path) const {
  if (!options_.served) return std::filesystem::path(path).filename().string();
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  return whole.lexically_relative(options_.served->folder).string();
}

void App::serve_browser() {
  Browser& browser = *screen_->browser();
  for (const std::string& link : browser.take_links()) {
    options_.select = link;
    selection_pending_ = true;
    try {
      const std::string trace = parse_selection(link).trace;
      const std::vector<std::string> offered = options_.served->traces();
      const auto found = std::ranges::find_if(
          offered, [&](const std::string& path) { return short_name(path) == trace; });
      if (!trace.empty() && found != offered.end()) model_.open(*found);
    } catch (const Error&) {
      // follow_selection() reports the link's mistake
    }
  }
  for (const PickedFile& file : browser.take_files()) take_file(file);
  std::string link = selection_link(model_);
  if (!link.empty() && (offered_.size() > 1 || model_.documents().size() > 1)) {
    const std::string& path = model_.documents()[model_.selection().trace].path;
    link = fmt::format("trace={}&{}", percent_encoded(short_name(path)), link);
  }
  if (!link.empty() && !front_.empty()) link += "&panel=" + front_;
  if (!selection_pending_) browser.set_link(link);
  const auto& edits = state_.of<CalibrationState>().edits;
  browser.set_unsaved(
      std::ranges::any_of(edits, [](const auto& edit) { return edit.second.dirty(); }));
}

/// A calibration file from the browser.
void App::take_file(const PickedFile& file) {
  try {
    if (leaving_) throw UsageError(fmt::format("{}: answer the open question first", file.name));
    given_ = std::make_unique<ScratchFolder>("blockscope-given");
    const std::filesystem::path path = given_->path() / file.name;
    if (path.extension() != ".json") {
      throw UsageError(
          fmt::format("{}: expected a calibration file (.json). HINT: traces stay on "
                      "their machine; give their folder to `view --serve`",
                      file.name));
    }
    std::ofstream(path, std::ios::binary) << file.bytes;
    state_.of<CalibrationState>().load_path = path.string();
  } catch (const Error& error) {
    model_.add_problem(error.what());
  }
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
