// `blockscope train`: trains the shipped model from nothing, or writes task prompts.
#pragma once

#include <CLI/App.hpp>

namespace blockscope {

void add_train_command(CLI::App& app);

}  // namespace blockscope
