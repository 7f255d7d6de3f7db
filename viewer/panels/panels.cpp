#include "viewer/panels/panels.h"

#include <algorithm>
#include <cctype>

namespace blockscope {

Panel trajectory_panel();
Panel attention_panel();
Panel heads_panel();
Panel heatmap_panel();
Panel curves_panel();
Panel lens_panel();
Panel selection_panel();
Panel draft_panel();
Panel compare_panel();
Panel calibration_panel();
Panel run_panel();

std::vector<Panel> all_panels() {
  return {trajectory_panel(), attention_panel(),   heads_panel(),     heatmap_panel(),
          curves_panel(),     lens_panel(),        selection_panel(), draft_panel(),
          compare_panel(),    calibration_panel(), run_panel()};
}

std::string panel_key(const Panel& panel) {
  std::string key = panel.name;
  std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
  return key;
}

std::vector<std::string> panel_names() {
  std::vector<std::string> names;
  for (const Panel& panel : all_panels()) names.push_back(panel_key(panel));
  return names;
}

}  // namespace blockscope
