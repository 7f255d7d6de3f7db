// The options of `study time --predict`.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "probe/study/study.h"

namespace blockscope {

void add_prediction_options(CLI::App& group, StudyOptions& options);

/// With --predict: throws UsageError for another study, and for an option that a prediction
/// ignores.
void check_prediction_flags(const CLI::App& command, const std::string& study);
/// Without it: throws UsageError for an option of predictions.
void refuse_without_prediction(const CLI::App& command);

}  // namespace blockscope
