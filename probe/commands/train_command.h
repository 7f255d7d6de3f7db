// `blockscope train`: trains a small model from scratch, or writes task prompts.
#pragma once

#include <CLI/App.hpp>

#include "probe/run/environment.h"

namespace blockscope {

void add_train_command(CLI::App& app, const Environment& environment);

}  // namespace blockscope
