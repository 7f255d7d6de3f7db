// The data of the page's script, as JSON: what a reader can choose beyond the static page.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/figures/gnuplot.h"
#include "analysis/report/sections.h"

namespace blockscope {

/// Largest numbers of values that a page holds. Text says what was left out.
struct ExploreLimits {
  std::size_t positions = 20'000;  ///< of decoded blocks
  std::size_t weights = 500'000;   ///< of the attention over text
  std::size_t cosines = 200'000;   ///< of the heatmaps by layer and head
  std::size_t points = 150'000;    ///< of the curves by layer and head
};

/// Everything but the drawings: how each block was decoded, the attention over its text, heatmaps
/// and curves by layer and head. `choice`: what the static page shows.
nlohmann::json explore_data(const TraceGroup& traces, const std::vector<BlockSteps>& blocks,
                            const PictureChoice& choice, const ReportMetrics& metrics,
                            const ExploreLimits& limits = {});

/// What each plot of a drawing shows, in the order of the plot groups in its SVG: kind ("line",
/// "cells", "bars", or "" for one without numbers of its own), names and points. Read from the
/// figure's commands and data, so every figure has it.
nlohmann::json plots_of(const Figure& figure);

/// JSON as the content of a <script> element: "<" and other letters that end it are escaped.
std::string script_json(const nlohmann::json& data);

/// The script and the style of the page, from explore.js and explore.css.
extern const std::string_view kExploreScript;
extern const std::string_view kExploreStyle;

}  // namespace blockscope
