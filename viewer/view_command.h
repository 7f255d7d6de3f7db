// `blockscope view`: parses its own options, then opens the window or makes a picture.
#pragma once

#include <CLI/App.hpp>

#include <string>

namespace blockscope {

/// `config_folder`: keeps the layout from run to run; empty: the layout is not kept.
void add_view_command(CLI::App& app, const std::string& config_folder);

}  // namespace blockscope
