// `blockscope view`: parses its own flags, opens the window or makes a picture.
#pragma once

#include <CLI/App.hpp>

#include <string>

namespace blockscope {

/// `config_folder`: where the layout is kept from run to run; empty: nowhere.
void add_view_command(CLI::App& app, const std::string& config_folder);

}  // namespace blockscope
