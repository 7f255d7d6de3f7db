// From a calibration file and the command line to the settings that verify measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/reuse_file.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

struct SettingFlags {
  std::string reuse_file;
  std::optional<int64_t> tau;  // overrides the file's; 2 without either
  bool sweep = false;
  std::vector<int64_t> taus{1, 2, 3, 4};
  std::vector<double> gammas;  // empty: of the file's curve, evenly in predicted saving
};

/// Throws UsageError: tau below 1, gamma outside [-1, 1], an empty list of taus.
void check_setting_flags(const SettingFlags& flags);

/// The file's own mask first; with `sweep`, every tau beside every gamma after it, masks made from
/// the file's similarities by its granularity and pins. Throws CalibrationError when a sweep finds
/// none, and when it has to choose the gammas and the file predicts no saving.
std::vector<ReuseSetting> reuse_settings(const SettingFlags& flags, const ReuseFile& file,
                                         int64_t num_kv_heads);

}  // namespace blockscope
