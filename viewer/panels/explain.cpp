// What a panel shows instead of missing data: the reason, or progress.
#include <imgui.h>

#include "viewer/panels/panels.h"

namespace blockscope {

void explain(const Explanation& what) {
  if (what.state == DataState::failed) return explain_missing(what.message);
  if (what.state == DataState::held) {
    explain_missing(what.message);
    if (ImGui::Button("Load anyway")) what.service->load(what.key);
    return;
  }
  if (what.progress <= 0.0) return ImGui::TextDisabled("loading ...");
  const float button = ImGui::CalcTextSize("Cancel").x + 3.0F * ImGui::GetStyle().FramePadding.x;
  ImGui::ProgressBar(static_cast<float>(what.progress),
                     ImVec2(-button - ImGui::GetStyle().ItemSpacing.x, 0.0F));
  ImGui::SameLine();
  if (what.service != nullptr && ImGui::Button("Cancel")) what.service->cancel(what.key);
}

void explain_missing(const std::string& text) {
  ImGui::PushTextWrapPos(0.0F);
  ImGui::TextDisabled("%s", text.c_str());
  ImGui::PopTextWrapPos();
}

}  // namespace blockscope
