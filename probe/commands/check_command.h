// `blockscope check`: compares our logits with logits that another implementation saved.
#pragma once

#include <CLI/App.hpp>

#include "probe/run/environment.h"

namespace blockscope {

/// Adds the subcommand; its callback throws blockscope::Error, or CLI::RuntimeError(1) when the
/// logits differ by more than the tolerance.
void add_check_command(CLI::App& app, const Environment& environment);

}  // namespace blockscope
