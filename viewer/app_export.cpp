// Export of one panel: its picture, cropped from the framebuffer, or its numbers as CSV.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_internal.h>
#include <misc/cpp/imgui_stdlib.h>

#include <algorithm>
#include <filesystem>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "viewer/app.h"
#include "viewer/model/selection_text.h"
#include "viewer/screen/png_file.h"

namespace blockscope {

std::optional<CsvTable> App::table(const std::string& panel) {
  const auto found = std::ranges::find(panels_, panel, [](const Panel& p) { return panel_key(p); });
  if (found == panels_.end() || found->table == nullptr) return std::nullopt;
  PanelContext now = context();
  return found->table(now);
}

void App::draw_panel_menu(const Panel& panel) {
  if (!ImGui::BeginMenuBar()) return;
  if (ImGui::BeginMenu("Export")) {
    const auto ask = [&](bool picture) {
      export_.emplace();
      export_->panel = &panel;
      export_->picture = picture;
      export_->path = export_name(model_, panel_key(panel), picture ? "png" : "csv", panel.part);
      if (!outlet_.asks()) begin_export();
    };
    const bool numbers = panel.table != nullptr;
    if (ImGui::MenuItem("Picture (PNG) ...")) ask(true);
    if (ImGui::MenuItem("Numbers (CSV) ...", nullptr, false, numbers)) ask(false);
    if (ImGui::MenuItem("Copy numbers", nullptr, false, numbers)) {
      const auto rows = table(panel_key(panel));
      if (rows) {
        screen_->set_clipboard(rows->text());
      } else {
        model_.add_problem(fmt::format("{}: shows no numbers yet.", panel.name));
      }
    }
    ImGui::EndMenu();
  }
  ImGui::EndMenuBar();
}

void App::save_export(const Image* image) {
  ExportRequest& wanted = *export_;
  const auto write = [&](const auto& fill) {
    outlet_.save(wanted.path, model_.documents()[model_.selection().trace].path,
                 [&](const std::string& path) {
                   OutputFile file = model_.files().open(path, wanted.replace);
                   fill(file);
                   file.commit();
                 });
  };
  try {
    if (wanted.picture) {
      const ImVec2 scale = ImGui::GetIO().DisplayFramebufferScale;
      const Image part = cropped(*image, wanted.panel->left * scale.x, wanted.panel->top * scale.y,
                                 wanted.panel->width * scale.x, wanted.panel->height * scale.y);
      write([&](OutputFile& file) { write_png(file, part.width, part.height, part.rgba); });
    } else {
      const auto rows = table(panel_key(*wanted.panel));
      if (!rows) throw Error("The panel shows no numbers yet.");
      write([&](OutputFile& file) { file.write(rows->text()); });
    }
    export_.reset();
  } catch (const std::exception& error) {
    wanted.problem = error.what();  // the popup stays open for another path
    wanted.frames = 0;
  }
}

void App::begin_export() {
  if (!export_->picture) return save_export(nullptr);
  export_->frames = 2;  // the popup and the menus are gone from these frames
  ImGui::GetCurrentContext()->DimBgRatio = 0.0F;  // no veil of the popup over the picture
}

void App::draw_export() {
  if (!export_ || export_->frames > 0) return;
  ExportRequest& wanted = *export_;
  if (!ImGui::IsPopupOpen("Export panel")) ImGui::OpenPopup("Export panel");
  const float width = 560.0F * screen_->scale();
  ImGui::SetNextWindowSizeConstraints(ImVec2(width, 0.0F), ImVec2(width, 1e6F));
  if (!ImGui::BeginPopupModal("Export panel", nullptr,
                              ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_AlwaysAutoResize))
    return;
  ImGui::Text("%s, %s", wanted.panel->name, wanted.picture ? "picture (PNG)" : "numbers (CSV)");
  ImGui::SetNextItemWidth(-1.0F);
  const bool enter =
      ImGui::InputText("##export-path", &wanted.path, ImGuiInputTextFlags_EnterReturnsTrue);
  outlet_.draw_choice();
  std::error_code ignored;
  if (outlet_.takes_paths()) {
    ImGui::TextDisabled("in %s", std::filesystem::current_path(ignored).c_str());
  }
  if (outlet_.asks()) {
    ImGui::BeginDisabled(outlet_.downloads());
    ImGui::Checkbox("Replace an existing file", &wanted.replace);
    ImGui::EndDisabled();
  }
  if (!wanted.problem.empty()) ImGui::TextWrapped("%s", wanted.problem.c_str());
  ImGui::Spacing();
  const bool save = ImGui::Button(outlet_.downloads() ? "Download" : "Save") || enter;
  ImGui::SameLine();
  const bool cancel = ImGui::Button("Cancel") || ImGui::IsKeyPressed(ImGuiKey_Escape, false);
  if (save || cancel) ImGui::CloseCurrentPopup();
  ImGui::EndPopup();
  if (cancel) {
    export_.reset();
  } else if (save) {
    begin_export();
  }
}

}  // namespace blockscope
