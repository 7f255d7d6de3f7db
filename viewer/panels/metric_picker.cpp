#include "viewer/panels/metric_picker.h"

#include <imgui.h>

#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

/// Sets the next widget's width; in a narrow window, the widget starts a new line.
void next_width(float width) {
  if (ImGui::GetContentRegionAvail().x < width) ImGui::NewLine();
  ImGui::SetNextItemWidth(width);
}

}  // namespace

void pick_metric(const char* id, std::size_t& metric, float scale, bool of_files) {
  next_width(170.0F * scale);
  if (!ImGui::BeginCombo(id, panel_metrics()[metric].view.label)) return;
  for (std::size_t i = 0; i < panel_metrics().size(); ++i) {
    if (!of_files && result_of_file(panel_metrics()[i].metric) != nullptr) continue;
    if (ImGui::Selectable(panel_metrics()[i].view.label, i == metric)) metric = i;
  }
  ImGui::EndCombo();
}

void pick_scope(const char* id, ViewModel::Scope& scope, float scale) {
  constexpr const char* kNames[] = {"whole trace", "this sequence", "this block"};
  int index = static_cast<int>(scope);
  next_width(112.0F * scale);
  if (ImGui::Combo(id, &index, kNames, 3)) scope = static_cast<ViewModel::Scope>(index);
}

bool has_metric(const TraceMeta& meta, const PanelMetric& choice) {
  const auto why = lacks(meta, choice);
  if (why) explain_missing(*why);
  return !why;
}

}  // namespace blockscope
