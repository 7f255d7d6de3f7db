// Asks Save, Discard or Cancel before an unsaved calibration is lost: when the window is closed,
// when the last trace of its model is closed, and when a file is loaded over it.
#include <fmt/format.h>
#include <imgui.h>
#include <misc/cpp/imgui_stdlib.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "viewer/app.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope {
namespace {

constexpr const char* kPopup = "Unsaved calibration";

std::string describe(const CalibrationEdit& edit) {
  const CalibrationChoice& choice = edit.choice();
  return fmt::format("gamma {:.6g}, tau {}, {}, of the model {}...", choice.gamma, choice.tau,
                     plural(static_cast<std::int64_t>(choice.pins.size()), "pin"),
                     edit.model().digest.substr(0, 12));
}

}  // namespace

CalibrationEdit* App::unsaved() {
  auto& edits = state_.of<CalibrationState>().edits;
  while (leaving_ && !leaving_->digests.empty()) {
    const auto found = edits.find(leaving_->digests.front());
    if (found != edits.end() && found->second.dirty()) return &found->second;
    leaving_->digests.erase(leaving_->digests.begin());
  }
  return nullptr;
}

void App::ask_before(const std::string& what, const std::vector<std::string>& digests,
                     std::function<void()> go) {
  if (leaving_) return;  // one question at a time
  leaving_ = Leaving{what, digests, std::move(go), false, ""};
  if (unsaved() == nullptr) std::exchange(leaving_, {})->go();
}

void App::ask_before_closing() {
  if (closing_ || screen_->gone() || !screen_->should_close()) return;
  screen_->keep_open();
  std::vector<std::string> digests;
  for (const auto& [digest, edit] : state_.of<CalibrationState>().edits) digests.push_back(digest);
  ask_before("quitting", digests, [this] {
    closing_ = true;
    screen_->close();
  });
}

void App::ask_before_loading() {
  CalibrationState& state = state_.of<CalibrationState>();
  const std::string path = std::exchange(state.load_path, {});
  if (path.empty()) return;
  CalibrationEdit* edit = active_calibration(model_, state);
  if (edit == nullptr) return;
  ask_before("loading a file over it", {edit->model().digest}, [this, path] {
    try {
      CalibrationEdit* now = active_calibration(model_, state_.of<CalibrationState>());
      if (now != nullptr) now->load(path);
    } catch (const Error& error) {
      model_.add_problem(error.what());
    }
  });
}

void App::close_trace() {
  const std::size_t active = model_.selection().trace;
  std::vector<std::string> digests;
  if (model_.overview() != nullptr) {
    const auto digest_of = [](const OpenDocument& document) {
      const auto model = reuse_model_of(document.overview->info.meta);
      return model ? model->digest : std::string();
    };
    const std::string digest = digest_of(model_.documents()[active]);
    const auto open = std::ranges::count_if(model_.documents(), [&](const OpenDocument& document) {
      return document.overview && digest_of(document) == digest;
    });
    if (open == 1) digests.push_back(digest);  // another trace of the model keeps the edit
  }
  ask_before("closing its last trace", digests, [this, active, digests] {
    // The edit is discarded with its trace, so the window must not ask about it again.
    for (const std::string& digest : digests) state_.of<CalibrationState>().edits.erase(digest);
    model_.close(active);
  });
}

void App::draw_unsaved() {
  if (!leaving_) return;
  CalibrationEdit* edit = unsaved();
  if (edit == nullptr) return std::exchange(leaving_, {})->go();
  if (!ImGui::IsPopupOpen(kPopup)) ImGui::OpenPopup(kPopup);
  const float width = 560.0F * screen_->scale();
  ImGui::SetNextWindowSizeConstraints(ImVec2(width, 0.0F), ImVec2(width, 1e6F));
  if (!ImGui::BeginPopupModal(kPopup, nullptr,
                              ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_AlwaysAutoResize))
    return;
  CalibrationState& state = state_.of<CalibrationState>();
  if (state.path.empty()) state.path = "reuse.json";
  const std::string& trace = model_.documents()[model_.selection().trace].path;
  ImGui::TextWrapped("This calibration is not saved, and %s would lose it:",
                     leaving_->what.c_str());
  ImGui::TextWrapped("%s", describe(*edit).c_str());
  ImGui::Spacing();
  ImGui::AlignTextToFramePadding();
  ImGui::TextUnformatted("Save as");
  ImGui::SameLine();
  ImGui::SetNextItemWidth(-1.0F);
  ImGui::InputText("##unsaved-path", &state.path);
  std::error_code ignored;
  outlet_.draw_choice();
  if (outlet_.takes_paths() && std::filesystem::path(state.path).is_relative()) {
    ImGui::TextDisabled("in %s", std::filesystem::current_path(ignored).c_str());
  }
  if (outlet_.asks()) {
    ImGui::BeginDisabled(outlet_.downloads());
    ImGui::Checkbox("Replace an existing file", &leaving_->replace);
    ImGui::EndDisabled();
  }
  if (!leaving_->problem.empty()) ImGui::TextWrapped("%s", leaving_->problem.c_str());
  ImGui::Spacing();
  const bool save = ImGui::Button("Save");
  ImGui::SameLine();
  const bool discard = ImGui::Button("Discard");
  ImGui::SameLine();
  const bool cancel = ImGui::Button("Cancel") || ImGui::IsKeyPressed(ImGuiKey_Escape, false);
  bool done = discard;
  if (save) {
    try {
      const std::string place = outlet_.place(state.path, trace);
      outlet_.save(state.path, trace, [&](const std::string& path) {
        save_calibration(model_, *edit, path, leaving_->replace || place == state.saved_path);
      });
      state.saved_path = place;
      done = true;
    } catch (const Error& error) {
      leaving_->problem = error.what();  // the popup stays open for another path
    }
  }
  if (done || cancel) ImGui::CloseCurrentPopup();
  ImGui::EndPopup();
  if (cancel) {
    leaving_.reset();
  } else if (done) {
    leaving_->problem.clear();
    leaving_->digests.erase(leaving_->digests.begin());  // draw_unsaved() asks about the next one
  }
}

}  // namespace blockscope
