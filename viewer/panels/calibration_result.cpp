#include <fmt/format.h>
#include <imgui.h>

#include <cmath>
#include <string>

#include "decode_record/base/text.h"
#include "viewer/panels/calibration_parts.h"

namespace blockscope {
namespace {

/// A colour that is readable on the dark or light background.
ImVec4 warning_colour(bool dark) {
  return dark ? ImVec4(0.93F, 0.62F, 0.15F, 1.0F) : ImVec4(0.62F, 0.33F, 0.0F, 1.0F);
}

std::string percent(double share) {
  return std::isnan(share) ? "not known" : fmt::format("{:.2f} %", 100.0 * share);
}

void row(const char* name, const std::string& value, const std::string& of) {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  ImGui::TextDisabled("%s", name);
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(value.c_str());
  ImGui::TableNextColumn();
  ImGui::TextDisabled("%s", of.c_str());
}

}  // namespace

void draw_calibration_result(const CalibrationEdit& edit, bool dark) {
  if (!edit.problem().empty()) {
    ImGui::PushStyleColor(ImGuiCol_Text, warning_colour(dark));
    ImGui::TextWrapped("%s", edit.problem().c_str());
    ImGui::PopStyleColor();
  }
  const Calibration* result = edit.result();
  if (result == nullptr) return;
  const ReusePrediction& predicted = result->predicted;
  const ReusePoint& point = predicted.point;
  const std::int64_t ranges = std::ssize(result->reuse.heads);
  const std::int64_t heads = edit.model().layers * edit.model().heads * ranges;
  if (ImGui::BeginTable("result", 3, ImGuiTableFlags_SizingFixedFit)) {
    row("heads that reuse", fmt::format("{} of {}", point.heads, heads),
        fmt::format("{}{} pinned; {} without a similarity",
                    ranges > 1 ? fmt::format("over {} ranges of steps; ", ranges) : "",
                    result->pins.size(), heads - result->trust.measured));
    row("compared with", std::string(to_string(edit.sums()->reference)),
        fmt::format("{}; tau counts {}", edit.sums()->statistic,
                    to_string(edit.sums()->tau_counts)));
    row("prefix bytes not read", percent(point.byte_saving),
        fmt::format("{} of {} keys are read", predicted.external_keys_read,
                    predicted.external_keys));
    row("FLOPs not spent", percent(point.flop_saving),
        fmt::format("reuse at {} of {}", predicted.reusing_steps, plural(predicted.steps, "step")));
    row("error where reused", percent(point.relative_l2_reused),
        fmt::format("relative L2 of the outputs that reuse, n = {}",
                    plural(point.terms_reused, "output")));
    row("error over all heads", percent(point.relative_l2_all_steps),
        "relative L2 of all heads and steps");
    ImGui::EndTable();
  }
  ImGui::PushStyleColor(ImGuiCol_Text, warning_colour(dark));
  for (const std::string& warning : edit.warnings()) ImGui::TextWrapped("%s", warning.c_str());
  if (const std::int64_t unlike = edit.heads_unlike_loaded(); unlike > 0) {
    ImGui::TextWrapped(
        "%s", fmt::format("{} differently with the open traces: the loaded file was made from "
                          "other traces",
                          plural(unlike, "head comes out", "heads come out"))
                  .c_str());
  }
  ImGui::PopStyleColor();
}

}  // namespace blockscope
