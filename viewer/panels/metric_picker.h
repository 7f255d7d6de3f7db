// The two combo boxes that the Heads and Curves panels share.
#pragma once

#include <cstddef>

#include "viewer/model/panel_metrics.h"

namespace blockscope {

void pick_metric(const char* id, std::size_t& metric, float scale);
void pick_scope(const char* id, ViewModel::Scope& scope, float scale);
/// False, with a sentence in the panel, when the trace lacks what the metric needs.
bool has_metric(const TraceMeta& meta, const PanelMetric& choice);

}  // namespace blockscope
