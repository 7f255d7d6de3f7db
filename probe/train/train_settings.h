// The settings of a training run that decide its weights. A state holds those it was made with, so
// that --resume goes on with them and with nothing else.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "probe/train/train_run.h"

namespace blockscope {

/// JSON text of the settings by option, without the dashes: those of all stages and of the stages
/// that run, "stage", and the folders and digests of the tokenizer and of a draft's target.
/// Threads, times and evaluations decide nothing.
std::string settings_json(const TrainRunOptions& options);

/// Whether an option, with its dashes, was given.
using GivenOptions = std::function<bool(const std::string& option)>;

/// Before a resumed run: `options.backbone` and `diffusion` as in the newest state of --work, where
/// --stage was not given.
void take_stage(TrainRunOptions& options);
/// And `options.tokenizer` and `train.target`, where they were not given, as in the newest state of
/// its stages. Throws UsageError when what was there is gone.
void take_folders(TrainRunOptions& options, const GivenOptions& given);
/// Sets what was not given to what the states of this run's stages say. Throws UsageError where a
/// given option or the tokenizer differs from them, CheckpointError for a state without settings.
void take_settings(TrainRunOptions& options, const GivenOptions& given);

std::filesystem::path state_file(const TrainRunOptions& options, TrainStage stage);

}  // namespace blockscope
