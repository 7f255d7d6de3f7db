// What the Calibration panel measures: ranges of steps, the reference and the bound of L_out.
#include <fmt/format.h>
#include <imgui.h>
#include <misc/cpp/imgui_stdlib.h>

#include <algorithm>
#include <string>

#include "decode_record/base/error.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope {
namespace {

std::string steps_text(const StepRanges& ranges, std::size_t range) {
  if (range + 1 == ranges.size()) return fmt::format("steps from {}", ranges.first[range]);
  return fmt::format("steps {}-{}", ranges.first[range], ranges.first[range + 1] - 1);
}

/// The range of steps that gamma and grid are of.
void draw_range(CalibrationState& state, const StepRanges& ranges, float scale) {
  if (state.range && *state.range >= ranges.size()) state.range.reset();
  if (ranges.size() == 1) return;
  const std::string shown = state.range ? steps_text(ranges, *state.range) : "all steps";
  ImGui::SetNextItemWidth(120.0F * scale);
  if (ImGui::BeginCombo("edits###range", shown.c_str())) {
    if (ImGui::Selectable("all steps", !state.range)) state.range.reset();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ImGui::Selectable(steps_text(ranges, i).c_str(), state.range == i)) state.range = i;
    }
    ImGui::EndCombo();
  }
  ImGui::SetItemTooltip(
      "the steps whose gamma moves and whose heads the grid shows; all steps: the least "
      "similarity, "
      "and heads that reuse at every step");
  ImGui::SameLine();
}

}  // namespace

void draw_calibration_measure(ViewModel& model, CalibrationState& state, CalibrationEdit& edit,
                              float scale) {
  draw_range(state, edit.choice().ranges, scale);
  CalibrationChoice choice = edit.choice();
  if (state.ranges_shown != choice.ranges) {  // a file or undo changed them
    state.ranges_shown = choice.ranges;
    state.ranges.clear();
    for (std::size_t i = 0; i + 1 < choice.ranges.size(); ++i) {
      state.ranges += fmt::format("{}-{},", choice.ranges.first[i], choice.ranges.first[i + 1] - 1);
    }
    if (choice.ranges.size() > 1) state.ranges += std::to_string(choice.ranges.first.back());
  }
  ImGui::SetNextItemWidth(110.0F * scale);
  ImGui::InputTextWithHint("by step###by-step", "2-4,5-8", &state.ranges);
  ImGui::SetItemTooltip("ranges of steps with masks of their own; empty: one mask (--by-step)");
  if (ImGui::IsItemDeactivatedAfterEdit()) {
    try {
      choice.ranges =
          state.ranges.empty() ? StepRanges{} : parse_step_ranges("by step", state.ranges);
      choice.set_gamma({}, choice.gamma_of(0));
      edit.change(choice);
    } catch (const Error& error) {
      model.add_problem(error.what());
    }
  }
  ImGui::SameLine();
  int reference = static_cast<int>(choice.reference);
  ImGui::SetNextItemWidth(110.0F * scale);
  constexpr const char* kNames[] = {"step before", "kept pair"};
  if (ImGui::Combo("compared###reference", &reference, kNames, 2)) {
    choice.reference = static_cast<ReuseReference>(reference);
    edit.change(choice);
  }
  ImGui::SetItemTooltip(
      "what a step's pair is compared with: that of the step before, or the pair that a reusing "
      "step "
      "would take at this tau (--reference)");
  ImGui::SameLine();
  bool bounded = choice.lse_bound.has_value();
  if (ImGui::Checkbox("bound of L_out###bounded", &bounded)) {
    choice.lse_bound = bounded ? std::optional(0.05) : std::nullopt;
    edit.change(choice);
  }
  ImGui::SetItemTooltip("no head reuses whose mean change of L_out is larger (--lse-bound)");
  if (!choice.lse_bound) return;
  ImGui::SameLine();
  ImGui::SetNextItemWidth(70.0F * scale);
  ImGui::InputDouble("###lse-bound", &*choice.lse_bound, 0.0, 0.0, "%.4g");
  if (!ImGui::IsItemDeactivatedAfterEdit()) return;
  choice.lse_bound = std::max(0.0, *choice.lse_bound);
  edit.change(choice);
}

}  // namespace blockscope
