#include "probe/verify/verify_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode_record/error.h"

namespace blockscope {
namespace {

/// What the file promises for this mask, if it has that point. Masks of one file are nested, so the
/// number of heads names the mask: any gamma that makes it will do.
const ReusePoint* point_of(const ReuseFile& file, const ReuseSetting& setting) {
  if (!setting.gamma.has_value()) return nullptr;
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
  setting.tau = reuse_tau(flags.tau, file.tau);
  setting.gamma = file.gamma;
  setting.reuse = file.reuse;
  if (file.predicted.has_value() && file.tau == setting.tau) {
    take_prediction(&file.predicted->point, setting);
  } else {
    take_prediction(point_of(file, setting), setting);
  }
  return setting;
}

/// For each of kSweepPoints even shares of the largest saving that the file predicts, the largest
/// gamma that reaches it, rising: a model's similarities may all lie within a few hundredths.
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

}  // namespace

void check_setting_flags(const SettingFlags& flags) {
  const auto check_tau = [](const char* flag, int64_t tau) {
    if (tau < 1) throw UsageError(fmt::format("{}: expected at least 1, got {}", flag, tau));
  };
  if (flags.tau.has_value()) check_tau("--tau", *flags.tau);
  if (!flags.sweep) return;
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
                                         int64_t num_kv_heads) {
  std::vector<ReuseSetting> settings{own_setting(flags, file)};
  if (!flags.sweep) return settings;
  if (file.similarity.empty()) {
    throw CalibrationError(
        fmt::format("{}: similarity: expected [layers][heads] to make masks from, got none. HINT: "
                    "`blockscope calibrate` writes it; without it leave out --sweep",
                    flags.reuse_file));
  }
  const std::vector<double> gammas =
      flags.gammas.empty() ? gammas_of(file, flags.reuse_file) : flags.gammas;
  for (const int64_t tau : flags.taus) {
    for (const double gamma : gammas) {
      ReuseSetting setting;
      setting.tau = tau;
      setting.gamma = gamma;
      setting.reuse = reuse_mask(file.similarity, gamma, file.granularity, num_kv_heads, file.pins);
      take_prediction(point_of(file, setting), setting);
      settings.push_back(std::move(setting));
    }
  }
  return settings;
}

}  // namespace blockscope
