// `blockscope eval`: accuracy of a checkpoint on generated tasks, by task, context length and depth
// of the needle. Training never sees these prompts.
#pragma once

#include <CLI/App.hpp>

#include "probe/run/environment.h"

namespace blockscope {

void add_eval_command(CLI::App& app, const Environment& environment);

}  // namespace blockscope
