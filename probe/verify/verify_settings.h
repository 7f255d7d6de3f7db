// Makes the settings that verify measures from the command line and a calibration file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/interchange/reuse_file.h"
#include "probe/policies/policy_table.h"
#include "probe/run/run_flags.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

struct SettingFlags {
  PolicyOptions policy;
  bool sweep = false;
  std::vector<int64_t> taus{1, 2, 3, 4};
  std::string also;            // calibration file: the sweep has its masks, too
  std::vector<double> gammas;  // empty: from the file's curve, evenly spaced in predicted saving
};

/// Throws UsageError for a sweep without flashblock and a calibration file, tau below 1, gamma
/// outside [-1, 1], and an empty list of taus.
void check_setting_flags(const SettingFlags& flags);

/// The setting of one policy; throws what choose_policy throws.
PolicySetting policy_setting(const PolicyOptions& policy, const LoadedModel& model);

/// The settings to compare with the reference: the policy first, then the sweep's settings.
std::vector<PolicySetting> policy_settings(const SettingFlags& flags, const LoadedModel& model);

/// A fresh policy for one decoding of a batch.
std::unique_ptr<AttentionPolicy> make_policy(const PolicySetting& setting,
                                             const LoadedModel& model);

/// FlashBlock's settings from a calibration file. The file's own mask comes first. With `sweep`,
/// every tau with every gamma follows; their masks are made from the file's similarities by its
/// granularity and pins. `own`: whether the file's own mask is wanted. Throws CalibrationError if a
/// sweep needs similarities that the file lacks, or must choose the gammas and the file predicts no
/// saving.
std::vector<ReuseSetting> reuse_settings(const SettingFlags& flags, const ReuseFile& file,
                                         int64_t num_kv_heads, bool own = true);

}  // namespace blockscope
