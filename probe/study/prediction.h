// `study time --predict`: FlashBlock's Fig. 3 and the speed in its Table 1 (arXiv 2602.05305) on
// paper, for a device and a model that need not be here.
#pragma once

#include <string>

#include "probe/checkpoint/hub_cache.h"
#include "probe/study/study.h"

namespace blockscope {

/// Stands in for `time` in the list of studies if --predict is given; it has no `make`.
const StudyInfo& prediction_info();

/// What is decoded, resolved from the flags.
struct PredictionSetting {
  ModelConfig config;
  std::string model;  // for messages and the heading
  std::string dtype;
};

/// `model`: a given shape (trado-8b), or what resolve_model accepts; only the configuration is
/// read. Throws what resolve_model and load_model_config throw, and UsageError for an unknown
/// dtype.
PredictionSetting prediction_setting(const ModelFlags& model, const Environment& environment);

/// The folder whose configuration is read; empty for a given shape.
std::string prediction_folder(const ModelFlags& model, const Environment& environment);

/// Throws UsageError or Error for options that don't fit one another, the model or the device.
StudyReport predicted_report(const StudyOptions& options, const PredictionSetting& setting);

}  // namespace blockscope
