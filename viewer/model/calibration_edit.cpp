#include "viewer/model/calibration_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::size_t kAllGammas = std::numeric_limits<std::size_t>::max();

std::vector<ReusePin> pins_of(const CalibrationChoice& choice) {
  std::vector<ReusePin> pins;
  for (const auto& [place, reuse] : choice.pins) pins.push_back({place.first, place.second, reuse});
  return pins;
}

CalibrationChoice choice_of(const ReuseFile& file, const CalibrationChoice& now) {
  CalibrationChoice choice;
  choice.ranges = file.reuse.ranges;
  choice.reference = file.reference;
  choice.lse_bound = file.lse_bound;
  choice.gamma = file.gamma.empty() ? 1.0 : file.gamma.front();  // no similarity is above 1
  const bool one = std::ranges::count(file.gamma, choice.gamma) == std::ssize(file.gamma);
  if (!one) choice.gammas = file.gamma;
  choice.tau = file.tau.value_or(now.tau);
  choice.granularity = file.granularity;
  for (const ReusePin& pin : file.pins) choice.pins[{pin.layer, pin.head}] = pin.reuse;
  if (!file.gamma.empty() && !file.similarity.empty()) return choice;
  if (file.reuse.ranges.size() > 1) {
    throw CalibrationError(
        "step_ranges: expected similarities and a gamma, got masks by hand, which pins of all "
        "steps "
        "can't say. HINT: write the masks of each range with `blockscope calibrate --by-step`");
  }
  choice.gamma = 1.0;
  choice.gammas.clear();
  const HeadMatrix<bool>& reuse = file.reuse.heads.front();
  for (std::size_t layer = 0; layer < reuse.size(); ++layer) {
    for (std::size_t head = 0; head < reuse[layer].size(); ++head) {
      if (!reuse[layer][head]) continue;
      choice.pins[{static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head)}] = true;
    }
  }
  return choice;
}

template <typename T>
T cell(const std::vector<std::vector<T>>& matrix, std::int64_t layer, std::int64_t head) {
  return matrix[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)];
}

}  // namespace

void CalibrationChoice::set_gamma(const std::optional<std::size_t>& range, double value) {
  if (!range) {
    gamma = value;
    gammas.clear();
    return;
  }
  if (gammas.empty()) gammas.assign(ranges.size(), gamma);
  gammas.at(*range) = value;
}

CalibrationEdit::CalibrationEdit(ReuseModel model) : model_(std::move(model)) {}

void CalibrationEdit::set_sums(std::shared_ptr<const CalibrationSums> sums) {
  if (sums == sums_) return;
  sums_ = std::move(sums);
  curves_for_.reset();
  update();
}

CalibrationRequest CalibrationEdit::request() const {
  CalibrationRequest wanted{
      choice_.gamma, {}, {}, choice_.tau, choice_.granularity, pins_of(choice_), choice_.lse_bound};
  if (!choice_.gammas.empty()) {
    wanted.gamma.reset();
    wanted.gammas = choice_.gammas;
  }
  return wanted;
}

void CalibrationEdit::update() {
  result_.reset();
  problem_.clear();
  if (!sums_) {
    curves_.clear();
    return;
  }
  // The sums for another tau are still being computed: no result, and no problem.
  const bool measured_tau = std::ranges::count(sums_->taus, choice_.tau, &TauSums::tau) > 0 &&
                            sums_->ranges == choice_.ranges &&
                            sums_->reference == choice_.reference;
  try {
    CalibrationChoice shape = choice_;
    shape.gamma = 0.0;
    shape.gammas.clear();
    shape.tau = 0;
    if (curves_for_ != shape) {
      curves_for_.reset();
      curves_.clear();
      const ReusePredictor predictor(*sums_, choice_.granularity, pins_of(choice_),
                                     choice_.lse_bound);
      for (const TauSums& tau : sums_->taus) curves_.push_back(predictor.curve(tau.tau));
      curves_for_ = std::move(shape);
    }
    if (measured_tau) result_ = choose(*sums_, request());
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

void CalibrationEdit::preview(CalibrationChoice choice) {
  if (choice == choice_) return;
  choice_ = std::move(choice);
  update();
}

void CalibrationEdit::commit() {
  if (choice_ == committed_) return;
  undo_.push_back(std::move(committed_));
  redo_.clear();
  committed_ = choice_;
}

void CalibrationEdit::change(CalibrationChoice choice) {
  commit();
  preview(std::move(choice));
  commit();
}

void CalibrationEdit::undo() {
  commit();
  if (undo_.empty()) return;
  redo_.push_back(std::move(choice_));
  committed_ = choice_ = std::move(undo_.back());
  undo_.pop_back();
  update();
}

void CalibrationEdit::redo() {
  commit();
  if (redo_.empty()) return;
  undo_.push_back(std::move(choice_));
  committed_ = choice_ = std::move(redo_.back());
  redo_.pop_back();
  update();
}

bool CalibrationEdit::measured(std::int64_t layer, std::int64_t head) const {
  if (!sums_ || layer < 0 || layer >= model_.layers || head < 0 || head >= model_.heads)
    return false;
  return std::ranges::any_of(sums_->similarity, [&](const HeadMatrix<double>& matrix) {
    return !std::isnan(cell(matrix, layer, head));
  });
}

std::optional<bool> CalibrationEdit::pin_of(std::int64_t layer, std::int64_t head) const {
  const auto found = choice_.pins.find({layer, head});
  return found == choice_.pins.end() ? std::nullopt : std::optional(found->second);
}

void CalibrationEdit::toggle_pin(std::int64_t layer, std::int64_t head) {
  if (!measured(layer, head) || !result_) return;
  const bool remove = pin_of(layer, head).has_value();
  // If it reuses in some ranges only, the first click makes it reuse in all.
  const bool reuse = !std::ranges::all_of(result_->reuse.heads, [&](const HeadMatrix<bool>& range) {
    return bool{cell(range, layer, head)};
  });
  std::int64_t first = head;
  std::int64_t count = 1;
  if (choice_.granularity == ReuseGranularity::kv_group) {
    const std::int64_t kv_heads = model_.kv_heads_of(static_cast<std::size_t>(layer));
    count = model_.heads / std::max<std::int64_t>(1, kv_heads);
    first = head / count * count;
  }
  CalibrationChoice choice = choice_;
  for (std::int64_t h = first; h < first + count; ++h) {
    if (remove) {
      choice.pins.erase({layer, h});
    } else if (measured(layer, h)) {
      choice.pins[{layer, h}] = reuse;
    }
  }
  change(std::move(choice));
}

void CalibrationEdit::clear_pins() {
  CalibrationChoice choice = choice_;
  choice.pins.clear();
  change(std::move(choice));
}

void CalibrationEdit::step_gamma(int by, const std::optional<std::size_t>& range) {
  if (!result_) return;
  const ReusePredictor predictor(*sums_, choice_.granularity, pins_of(choice_), choice_.lse_bound);
  const auto heads_of = [&](const CalibrationChoice& choice) {
    std::vector<double> gammas;
    for (std::size_t i = 0; i < choice.ranges.size(); ++i) gammas.push_back(choice.gamma_of(i));
    return predictor.heads(gammas);
  };
  const std::int64_t heads = heads_of(choice_);
  CalibrationChoice next = choice_;
  CalibrationChoice tried = choice_;
  for (const double gamma : predictor.gammas(kAllGammas)) {  // ascending: fewer and fewer heads
    tried.set_gamma(range, gamma);
    const std::int64_t other = heads_of(tried);
    if (by < 0 && other > heads) next = tried;
    if (by > 0 && other < heads) {
      next = tried;
      break;
    }
  }
  change(std::move(next));
}

void CalibrationEdit::aim_at_saving(double saving) {
  if (!sums_) return;
  CalibrationRequest wanted = request();
  wanted.gamma.reset();
  wanted.gammas.clear();
  wanted.saving = saving;
  CalibrationChoice choice = choice_;
  choice.set_gamma({}, choose(*sums_, wanted).gamma.front());
  change(std::move(choice));
}

void CalibrationEdit::aim_at_error(double error) {
  if (!sums_) return;
  CalibrationRequest wanted = request();
  wanted.gamma.reset();
  wanted.gammas.clear();
  wanted.max_error = error;
  CalibrationChoice choice = choice_;
  choice.set_gamma({}, choose(*sums_, wanted).gamma.front());
  change(std::move(choice));
}

std::vector<std::string> CalibrationEdit::warnings() const {
  return result_ ? warnings_of(*result_) : std::vector<std::string>();
}

void CalibrationEdit::save(const std::string& path, bool force) {
  if (!result_) {
    throw UsageError(fmt::format("{}: there is no calibration to save yet{}{}", path,
                                 problem_.empty() ? "" : ": ", problem_));
  }
  commit();
  write_reuse_file(path, to_reuse_file(*sums_, *result_), force);
  saved_ = choice_;
  loaded_.reset();
}

void CalibrationEdit::load(const std::string& path) {
  const ReuseFile file = read_reuse_file(path, model_);
  change(choice_of(file, choice_));
  saved_ = choice_;
  loaded_.emplace(choice_, file.reuse);
}

std::int64_t CalibrationEdit::heads_unlike_loaded() const {
  if (!loaded_ || !result_ || loaded_->first != choice_) return 0;
  std::int64_t count = 0;
  for (std::size_t range = 0; range < result_->reuse.heads.size(); ++range) {
    const HeadMatrix<bool>& now = result_->reuse.heads[range];
    for (std::size_t layer = 0; layer < now.size(); ++layer) {
      for (std::size_t head = 0; head < now[layer].size(); ++head) {
        count += now[layer][head] != loaded_->second.heads[range][layer][head] ? 1 : 0;
      }
    }
  }
  return count;
}

}  // namespace blockscope
