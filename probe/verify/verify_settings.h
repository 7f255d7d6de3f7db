// From the command line and a calibration file to the settings that verify measures.
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
  std::vector<double> gammas;  // empty: of the file's curve, evenly in predicted saving
};

/// Throws UsageError: a sweep of anything but flashblock with a calibration file, tau below 1,
/// gamma outside [-1, 1], an empty list of taus.
void check_setting_flags(const SettingFlags& flags);

/// One policy; throws what choose_policy throws.
PolicySetting policy_setting(const PolicyOptions& policy, const LoadedModel& model);

/// What to measure beside the reference: the policy first, then the sweep's settings.
std::vector<PolicySetting> policy_settings(const SettingFlags& flags, const LoadedModel& model);

/// A fresh policy for one decoding of a batch.
std::unique_ptr<AttentionPolicy> make_policy(const PolicySetting& setting,
                                             const LoadedModel& model);

/// FlashBlock's settings of a calibration file. The file's own mask first; with `sweep`, every tau
/// beside every gamma after it, masks made from the file's similarities by its granularity and
/// pins. Throws CalibrationError when a sweep finds none, and when it has to choose the gammas and
/// the file predicts no saving.
std::vector<ReuseSetting> reuse_settings(const SettingFlags& flags, const ReuseFile& file,
                                         int64_t num_kv_heads);

}  // namespace blockscope
