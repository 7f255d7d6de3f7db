// A whole run of stage reuse: base, data, log files, states, adapter and merged checkpoint.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "probe/train/train_run.h"

namespace blockscope {

/// The files that a run of stage reuse writes into --out.
std::vector<std::filesystem::path> reuse_outputs(const TrainRunOptions& options);

/// Returns when the stage reached its last step and wrote its adapter, or when --minutes are over
/// and the state is saved. After a signal it saves the state and throws InterruptedError.
void run_reuse(const TrainRunOptions& options, std::chrono::steady_clock::time_point start);

}  // namespace blockscope
