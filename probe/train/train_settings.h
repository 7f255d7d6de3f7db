// The settings of a training run that decide its weights. A state holds its settings, so that
// --resume uses exactly the same.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "probe/train/train_run.h"

namespace blockscope {

/// JSON text of the settings by option name without dashes: the common settings, those of the
/// stages that run, "stage", and the folders and digests of the tokenizer, a draft's target, an
/// adapter's base and texts.
/// Threads, times and evaluations don't change the weights and are left out.
std::string settings_json(const TrainRunOptions& options);

/// Whether an option, with its dashes, was given.
using GivenOptions = std::function<bool(const std::string& option)>;

/// Before a resumed run without --stage: sets the stages that run as in the newest state of --work.
void take_stage(TrainRunOptions& options);
/// Sets tokenizer, target, base and texts, if they were not given, as in the newest state of
/// the stages. Throws UsageError if these folders are gone.
void take_folders(TrainRunOptions& options, const GivenOptions& given);
/// Sets options that were not given as in the states of this run's stages. Throws UsageError if a
/// given option or the tokenizer differs from them, CheckpointError for a state without settings.
void take_settings(TrainRunOptions& options, const GivenOptions& given);

std::filesystem::path state_file(const TrainRunOptions& options, TrainStage stage);
/// A file next to a stage's state. It names the checkpoint folder that this run writes, and so may
/// write again.
std::filesystem::path owner_file(const TrainRunOptions& options, TrainStage stage);

}  // namespace blockscope
