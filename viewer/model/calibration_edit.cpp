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
  choice.gamma = file.gamma.value_or(1.0);  // no similarity is above 1
  choice.tau = file.tau.value_or(now.tau);
  choice.granularity = file.granularity;
  for (const ReusePin& pin : file.pins) choice.pins[{pin.layer, pin.head}] = pin.reuse;
  if (file.gamma && !file.similarity.empty()) return choice;
  choice.gamma = 1.0;
  for (std::size_t layer = 0; layer < file.reuse.size(); ++layer) {
    for (std::size_t head = 0; head < file.reuse[layer].size(); ++head) {
      if (!file.reuse[layer][head]) continue;
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

CalibrationEdit::CalibrationEdit(ReuseModel model) : model_(std::move(model)) {}

void CalibrationEdit::set_sums(std::shared_ptr<const CalibrationSums> sums) {
  if (sums == sums_) return;
  sums_ = std::move(sums);
  curves_for_.reset();
  update();
}

CalibrationRequest CalibrationEdit::request() const {
  return {choice_.gamma, {}, {}, choice_.tau, choice_.granularity, pins_of(choice_)};
}

void CalibrationEdit::update() {
  result_.reset();
  problem_.clear();
  if (!sums_) {
    curves_.clear();
    return;
  }
  // The sums for another tau are still being computed: no result, and no problem.
  const bool measured_tau = std::ranges::count(sums_->taus, choice_.tau, &TauSums::tau) > 0;
  try {
    CalibrationChoice shape = choice_;
    shape.gamma = 0.0;
    shape.tau = 0;
    if (curves_for_ != shape) {
      curves_for_.reset();
      curves_.clear();
      const ReusePredictor predictor(*sums_, choice_.granularity, pins_of(choice_));
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
  return sums_ && layer >= 0 && layer < model_.layers && head >= 0 && head < model_.heads &&
         !std::isnan(cell(sums_->similarity, layer, head));
}

std::optional<bool> CalibrationEdit::pin_of(std::int64_t layer, std::int64_t head) const {
  const auto found = choice_.pins.find({layer, head});
  return found == choice_.pins.end() ? std::nullopt : std::optional(found->second);
}

void CalibrationEdit::toggle_pin(std::int64_t layer, std::int64_t head) {
  if (!measured(layer, head) || !result_) return;
  const bool remove = pin_of(layer, head).has_value();
  const bool reuse = !cell(result_->reuse, layer, head);
  std::int64_t first = head;
  std::int64_t count = 1;
  if (choice_.granularity == ReuseGranularity::kv_group) {
    count = model_.heads / std::max<std::int64_t>(1, model_.kv_heads);
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

void CalibrationEdit::step_gamma(int by) {
  if (!result_) return;
  const ReusePredictor predictor(*sums_, choice_.granularity, pins_of(choice_));
  const std::int64_t heads = predictor.at(choice_.gamma, choice_.tau).heads;
  CalibrationChoice choice = choice_;
  for (const double gamma : predictor.gammas(kAllGammas)) {  // ascending: fewer and fewer heads
    const std::int64_t other = predictor.at(gamma, choice_.tau).heads;
    if (by < 0 && other > heads) choice.gamma = gamma;
    if (by > 0 && other < heads) {
      choice.gamma = gamma;
      break;
    }
  }
  change(std::move(choice));
}

void CalibrationEdit::aim_at_saving(double saving) {
  if (!sums_) return;
  CalibrationRequest wanted = request();
  wanted.gamma.reset();
  wanted.saving = saving;
  CalibrationChoice choice = choice_;
  choice.gamma = choose(*sums_, wanted).gamma;
  change(std::move(choice));
}

void CalibrationEdit::aim_at_error(double error) {
  if (!sums_) return;
  CalibrationRequest wanted = request();
  wanted.gamma.reset();
  wanted.max_error = error;
  CalibrationChoice choice = choice_;
  choice.gamma = choose(*sums_, wanted).gamma;
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
  for (std::size_t layer = 0; layer < result_->reuse.size(); ++layer) {
    for (std::size_t head = 0; head < result_->reuse[layer].size(); ++head) {
      count += result_->reuse[layer][head] != loaded_->second[layer][head] ? 1 : 0;
    }
  }
  return count;
}

}  // namespace blockscope
