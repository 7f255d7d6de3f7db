// What panels show as text, for pictures made without a person:
// "heads=recall,curves=unions,heatmap=steps,compare=tokens,scope=block".
#pragma once

#include <string>

#include "viewer/panels/panels.h"

namespace blockscope {

/// What `text` may hold, for --help and errors.
std::string show_text_help();
/// Throws UsageError, naming what is possible.
void show_from_text(const std::string& text, PanelStates& states);

}  // namespace blockscope
