// The two combo boxes that the Heads and Curves panels share.
#pragma once

#include <cstddef>

#include "viewer/model/panel_metrics.h"

namespace blockscope {

/// `of_files`: also those that came from a file.
void pick_metric(const char* id, std::size_t& metric, float scale, bool of_files = true);
void pick_scope(const char* id, ViewModel::Scope& scope, float scale);
/// If the trace lacks what the metric needs, writes a sentence into the panel and returns false.
bool has_metric(const TraceMeta& meta, const PanelMetric& choice);

}  // namespace blockscope
