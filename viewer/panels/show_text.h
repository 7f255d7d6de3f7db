// Text that says what the panels show, for pictures made on the command line:
// "heads=recall,curves=unions,heatmap=steps,compare=tokens,scope=block".
#pragma once

#include <string>

#include "viewer/panels/panels.h"

namespace blockscope {

/// The possible texts, for --help and errors.
std::string show_text_help();
/// Throws UsageError with the possible texts.
void show_from_text(const std::string& text, PanelStates& states);

}  // namespace blockscope
