#include "probe/verify/verify_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/policies/flashblock_policy.h"

namespace blockscope {
namespace {

/// Files predict for the tau rule that they were made with, and for rows that read all together.
bool predicts_for(const ReuseFile& file, const ReuseSetting& setting) {
  return !setting.bound && setting.count == file.tau_counts && setting.refresh == ReuseRefresh::all;
}

/// The file's prediction for this mask, if it has that point. Masks of one file are nested, so the
/// number of heads identifies the mask, whatever gamma made it.
const ReusePoint* point_of(const ReuseFile& file, const ReuseSetting& setting) {
  if (!setting.gamma.has_value() || !predicts_for(file, setting)) return nullptr;
  for (const ReuseCurve& curve : file.curves) {
    if (curve.tau != setting.tau) continue;
    for (const ReusePoint& point : curve.points) {
      if (point.heads == setting.heads()) return &point;
    }
  }
  return nullptr;
}

void take_prediction(const ReusePoint* point, ReuseSetting& setting) {
  if (point == nullptr) return;
  setting.file_predicts = point->byte_saving;
  if (!std::isnan(point->relative_l2_reused)) setting.file_error = point->relative_l2_reused;
}

ReuseSetting own_setting(const SettingFlags& flags, const ReuseFile& file) {
  ReuseSetting setting;
  setting.by_effect = file.statistic == kEffectRank;
  const ReuseRule rule = reuse_rule(flags.policy.tau, flags.policy.count, file);
  setting.tau = static_cast<int64_t>(rule.tau);
  setting.count = rule.count;
  setting.refresh = flags.policy.refresh;
  if (flags.policy.bound) {
    setting.bound = error_bound(*flags.policy.bound, file, flags.policy.reuse_file);
  }
  const auto& gammas = file.gamma;
  if (!gammas.empty() &&
      std::count(gammas.begin(), gammas.end(), gammas[0]) == std::ssize(gammas)) {
    setting.gamma = gammas[0];
  }
  setting.reuse = file.reuse;
  if (flags.policy.sure || !predicts_for(file, setting)) return setting;
  if (file.predicted.has_value() && file.tau == setting.tau) {
    take_prediction(&file.predicted->point, setting);
  } else {
    take_prediction(point_of(file, setting), setting);
  }
  return setting;
}

/// For each of kSweepPoints evenly spaced savings up to the largest predicted one: the largest
/// gamma that reaches it. Rising. Evenly spaced gammas would not do, because all similarities of a
/// model may differ by only a few hundredths.
std::vector<double> gammas_of(const ReuseFile& file, const std::string& path) {
  constexpr int kSweepPoints = 8;
  const auto saves_less = [](const ReusePoint& a, const ReusePoint& b) {
    return a.byte_saving < b.byte_saving;
  };
  const std::vector<ReusePoint>* points = nullptr;  // tau scales the savings of all gammas alike
  double most = 0.0;
  for (const ReuseCurve& curve : file.curves) {
    if (curve.points.empty()) continue;
    const double saving =
        std::max_element(curve.points.begin(), curve.points.end(), saves_less)->byte_saving;
    if (saving > most) points = &curve.points;
    most = std::max(most, saving);
  }
  if (points == nullptr) {
    throw CalibrationError(fmt::format(
        "{}: predictions: expected a saving to choose the gammas of --sweep by, got none. "
        "HINT: --gammas",
        path));
  }
  std::vector<double> gammas;
  for (int i = kSweepPoints; i > 0; --i) {
    const double wanted = most * i / kSweepPoints - 1e-9;
    double largest = points->front().gamma;
    for (const ReusePoint& point : *points) {
      if (point.byte_saving >= wanted) largest = std::max(largest, point.gamma);
    }
    if (gammas.empty() || largest > gammas.back()) gammas.push_back(largest);
  }
  return gammas;
}

/// The masks of one gamma for all ranges of steps.
ReuseMasks masks_at(const ReuseFile& file, double gamma, int64_t num_kv_heads) {
  ReuseFile of_model = file;
  of_model.model.kv_heads = num_kv_heads;  // a file without measured groups may lack it
  return reuse_masks(of_model, std::vector<double>(file.reuse.ranges.size(), gamma));
}

ReuseModel reuse_model(const LoadedModel& model) {
  return {model.config.num_layers, model.config.num_heads, model.config.num_kv_heads, model.digest};
}

/// flashblock's options for this setting: tau may come from the file or from the sweep.
PolicySetting flashblock_setting(PolicyOptions policy, ReuseSetting reuse, bool of_sweep,
                                 const nlohmann::json& own) {
  PolicySetting setting;
  nlohmann::json json = own;
  if (!reuse.bound) {
    policy.tau = json["tau"] = reuse.tau;
    // A file may have another default.
    const bool is_default =
        reuse.count == ReuseCount::since_read && (of_sweep || policy.reuse_file.empty());
    if (is_default) {
      policy.count.reset();
    } else {
      policy.count = reuse.count;
    }
  }
  setting.label = policy_text(policy);
  if (of_sweep) {
    policy.reuse_file.clear();  // the mask is not the file's
    setting.label = fmt::format("{} (gamma {:g}{})", policy_text(policy), *reuse.gamma,
                                reuse.by_effect ? ", by effect" : "");
    json["gamma"] = *reuse.gamma;
    if (reuse.by_effect) json["order"] = "effect";
  }
  setting.settings = json.dump();
  setting.policy = std::move(policy);
  setting.reuse = std::move(reuse);
  return setting;
}

}  // namespace

PolicySetting policy_setting(const PolicyOptions& policy, const LoadedModel& model) {
  SettingFlags alone;
  alone.policy = policy;
  return policy_settings(alone, model).front();
}

std::vector<PolicySetting> policy_settings(const SettingFlags& flags, const LoadedModel& model) {
  const std::string json = choose_policy(flags.policy, policy_model(model)).settings;
  if (!policy_entry(flags.policy).heeds("reuse")) {
    return {{flags.policy, policy_text(flags.policy), json, std::nullopt}};
  }
  const ModelConfig& config = model.config;
  ReuseFile file;  // without one every head may reuse
  file.reuse.heads = {
      HeadMatrix<bool>(static_cast<size_t>(config.num_layers),
                       std::vector<bool>(static_cast<size_t>(config.num_heads), true))};
  if (!flags.policy.reuse_file.empty()) {
    file = read_reuse_file(flags.policy.reuse_file, reuse_model(model));
  }
  std::vector<PolicySetting> settings;
  std::vector<ReuseSetting> all = reuse_settings(flags, file, config.num_kv_heads);
  if (!flags.also.empty()) {
    SettingFlags other = flags;
    other.policy.reuse_file = flags.also;
    const ReuseFile second = read_reuse_file(flags.also, reuse_model(model));
    for (ReuseSetting& reuse : reuse_settings(other, second, config.num_kv_heads, false)) {
      all.push_back(std::move(reuse));
    }
  }
  for (ReuseSetting& reuse : all) {
    settings.push_back(flashblock_setting(flags.policy, std::move(reuse), !settings.empty(),
                                          nlohmann::json::parse(json)));
  }
  return settings;
}

std::unique_ptr<AttentionPolicy> make_policy(const PolicySetting& setting,
                                             const LoadedModel& model) {
  if (!setting.reuse.has_value()) return choose_policy(setting.policy, policy_model(model)).policy;
  const ModelConfig& config = model.config;
  return with_interventions(
      make_flashblock_policy({config.num_layers, config.num_heads, setting.reuse->rule(),
                              setting.reuse->reuse, setting.reuse->bound,
                              setting.policy.sure.value_or(0.0)}),
      setting.policy.interventions,
      {config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim,
       config.hidden_size});
}

void check_setting_flags(const SettingFlags& flags) {
  const auto check_tau = [](const char* flag, int64_t tau) {
    if (tau < 1) throw UsageError(fmt::format("{}: expected at least 1, got {}", flag, tau));
  };
  if (!flags.sweep) return;
  if (flags.policy.bound) {
    throw UsageError(
        "--sweep: expected a policy with tau, which the sweep changes, got bound. HINT: leave out "
        "bound, or --sweep");
  }
  if (flags.policy.reuse_file.empty()) {
    throw UsageError(fmt::format(
        "--sweep: expected flashblock with a calibration file, whose similarities the masks are "
        "made from, got {}. HINT: --policy flashblock,reuse=reuse.json",
        policy_text(flags.policy)));
  }
  if (flags.taus.empty()) {
    throw UsageError("--sweep: expected at least one value in --taus, got none");
  }
  for (const int64_t tau : flags.taus) check_tau("--taus", tau);
  for (const double gamma : flags.gammas) {
    if (gamma >= -1.0 && gamma <= 1.0) continue;
    throw UsageError(
        fmt::format("--gammas: expected a cosine similarity in [-1, 1], got {}", gamma));
  }
}

std::vector<ReuseSetting> reuse_settings(const SettingFlags& flags, const ReuseFile& file,
                                         int64_t num_kv_heads, bool own) {
  std::vector<ReuseSetting> settings;
  if (own) settings.push_back(own_setting(flags, file));
  if (!flags.sweep) return settings;
  if (file.similarity.empty()) {
    throw CalibrationError(
        fmt::format("{}: similarity: expected [layers][heads] to make masks from, got none. HINT: "
                    "`blockscope calibrate` writes it; without it leave out --sweep",
                    flags.policy.reuse_file));
  }
  const std::vector<double> gammas =
      flags.gammas.empty() ? gammas_of(file, flags.policy.reuse_file) : flags.gammas;
  for (const int64_t tau : flags.taus) {
    for (const double gamma : gammas) {
      ReuseSetting setting;
      setting.tau = tau;
      setting.count = reuse_rule(tau, flags.policy.count, file).count;
      setting.refresh = flags.policy.refresh;
      setting.by_effect = file.statistic == kEffectRank;
      setting.gamma = gamma;
      setting.reuse = masks_at(file, gamma, num_kv_heads);
      if (!flags.policy.sure) take_prediction(point_of(file, setting), setting);
      settings.push_back(std::move(setting));
    }
  }
  return settings;
}

}  // namespace blockscope
