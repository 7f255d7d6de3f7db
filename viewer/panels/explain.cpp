// What a panel shows when it has nothing to show.
#include <imgui.h>

#include "viewer/panels/panels.h"

namespace blockscope {

void explain(DataState state, double progress, const std::string& message) {
  if (state == DataState::failed) return explain_missing(message);
  if (progress > 0.0) {
    ImGui::ProgressBar(static_cast<float>(progress), ImVec2(-1.0F, 0.0F));
  } else {
    ImGui::TextDisabled("loading ...");
  }
}

void explain_missing(const std::string& text) {
  ImGui::PushTextWrapPos(0.0F);
  ImGui::TextDisabled("%s", text.c_str());
  ImGui::PopTextWrapPos();
}

}  // namespace blockscope
