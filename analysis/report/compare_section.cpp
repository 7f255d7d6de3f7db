// The loop of a PyTorch model, exact and with a policy: numbers and frames side by side.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "analysis/report/html.h"
#include "analysis/report/sections.h"

namespace blockscope {
namespace {

constexpr std::size_t kMostVideos = 8;
constexpr std::size_t kMostFrames = 24;

/// Evenly spread, with the first and the last.
std::vector<const LoopComparison::FramePair*> shown_frames(
    const std::vector<const LoopComparison::FramePair*>& frames) {
  const std::size_t count = std::min(frames.size(), kMostFrames);
  std::vector<const LoopComparison::FramePair*> shown;
  for (std::size_t i = 0; i < count; ++i) {
    shown.push_back(frames[count == 1 ? 0 : i * (frames.size() - 1) / (count - 1)]);
  }
  return shown;
}

std::string row_html(const std::string& name,
                     const std::vector<const LoopComparison::FramePair*>& frames,
                     std::string LoopComparison::FramePair::*side) {
  std::string html = "<tr><th scope=\"row\">" + html_prose(name) + "</th>";
  for (const LoopComparison::FramePair* frame : frames) {
    html += fmt::format("<td><img alt=\"frame {}\" src=\"data:image/png;base64,{}\"></td>",
                        frame->frame, frame->*side);
  }
  return html + "</tr>";
}

std::string videos_html(const LoopComparison& found) {
  std::map<std::int64_t, std::vector<const LoopComparison::FramePair*>> videos;
  for (const LoopComparison::FramePair& frame : found.frames) {
    videos[frame.prompt].push_back(&frame);
  }
  std::string html = "<div class=\"scroll frames\">";
  std::size_t shown = 0;
  for (const auto& [prompt, all] : videos) {
    if (shown++ == kMostVideos) break;
    const std::vector<const LoopComparison::FramePair*> frames = shown_frames(all);
    html += fmt::format("<table><thead><tr><th scope=\"col\">prompt {}</th>", prompt);
    for (const LoopComparison::FramePair* frame : frames) {
      html += fmt::format("<th scope=\"col\">{}</th>", frame->frame);
    }
    html += "</tr></thead><tbody>";
    html += row_html("exact", frames, &LoopComparison::FramePair::exact);
    html += row_html("policy", frames, &LoopComparison::FramePair::policy);
    html += "</tbody></table>\n";
  }
  html += "</div>\n";
  if (videos.size() > kMostVideos) {
    html +=
        html_paragraph(fmt::format("Shown: {} of {} prompts.", kMostVideos, videos.size()), "note");
  }
  return html;
}

}  // namespace

ReportSection compare_section(const LoopComparison& found) {
  ReportSection section{
      "compare",
      "With a policy",
      "The same loop, exact and with the policy, as blockscope.compare ran it. Errors are relative "
      "L2. Attention's errors are first-order: the same inputs, exact and with the policy.",
      {}};
  section.parts.emplace_back(loop_comparison_table(found));
  if (!found.frames.empty()) section.parts.emplace_back(ReportHtml{videos_html(found)});
  return section;
}

}  // namespace blockscope
