// `blockscope bench`: times decoding on this machine, and what each recorder level adds.
#pragma once

#include <CLI/App.hpp>

#include "probe/run/environment.h"

namespace blockscope {

void add_bench_command(CLI::App& app, const Environment& environment);

}  // namespace blockscope
