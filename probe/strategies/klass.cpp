#include "probe/strategies/klass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/text.h"
#include "probe/model/device.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

constexpr double kEpsilon = 1e-12;

}  // namespace

std::vector<double> KlassMemory::update(const std::vector<int64_t>& positions,
                                        const at::Tensor& probability) {
  if (positions.empty()) return {};
  std::vector<at::Tensor> before;
  for (size_t i = 0; i < positions.size(); ++i) {
    Track& track = tracks_[positions[i]];
    const at::Tensor now = probability[static_cast<int64_t>(i)];
    before.push_back(track.before.defined() ? track.before : at::zeros_like(now));
    track.before = now.clone();
  }
  const at::Tensor moved = (probability + kEpsilon).log() - (at::stack(before) + kEpsilon).log();
  const at::Tensor sums = on_host((probability * moved).sum(-1));
  const double* const kl = sums.const_data_ptr<double>();
  for (size_t i = 0; i < positions.size(); ++i) tracks_[positions[i]].kl.push_back(kl[i]);
  return {kl, kl + positions.size()};
}

bool KlassMemory::stable(int64_t position, double threshold, int64_t history) const {
  const auto found = tracks_.find(position);
  if (found == tracks_.end()) return false;
  const std::vector<double>& kl = found->second.kl;
  return std::ssize(kl) >= history &&
         std::all_of(kl.end() - history, kl.end(), [&](double x) { return x < threshold; });
}

void KlassMemory::forget_before(int64_t begin) {
  tracks_.erase(tracks_.begin(), tracks_.lower_bound(begin));
}

std::vector<int64_t> select_klass(const std::vector<double>& confidence,
                                  const std::vector<bool>& stable, const std::vector<bool>& masked,
                                  double threshold, int64_t due, KlassChoose choose,
                                  const std::vector<double>& kl) {
  std::vector<int64_t> ready;
  std::vector<int64_t> order;
  for (size_t p = 0; p < masked.size(); ++p) {
    if (!masked[p]) continue;
    order.push_back(static_cast<int64_t>(p));
    if (stable[p] && confidence[p] > threshold) ready.push_back(static_cast<int64_t>(p));
  }
  if (!ready.empty()) {
    const auto value = [](const std::vector<double>& of) {
      return [&of](int64_t p) { return of[static_cast<size_t>(p)]; };
    };
    switch (choose) {
      case KlassChoose::kAll:
        return ready;
      case KlassChoose::kMaxConf:
        return {*std::ranges::max_element(ready, {}, value(confidence))};
      case KlassChoose::kMinKl:
        return {*std::ranges::min_element(ready, {}, value(kl))};
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return confidence[static_cast<size_t>(a)] > confidence[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(due)));
  std::sort(order.begin(), order.end());
  return order;
}

StrategyEntry klass_entry() {
  StrategyEntry entry;
  entry.name = "klass";
  entry.example = "klass,kl_threshold=0.01";
  entry.meaning = "positions with high confidence whose distribution has stopped moving";
  entry.source = "KLASS, arXiv 2511.05664; src/model/llada_klass.py:stable_confident_decode";
  entry.options = {
      with_default(threshold_option("confidence that a position must be above"), "0.9"),
      real_option("kl_threshold", &UnmaskingOptions::kl_threshold, {0.0, kNoBound, true},
                  "KL in nats between two steps that a position must stay below"),
      whole_option("kl_history", &UnmaskingOptions::kl_history, 1,
                   "number of last steps that must be below kl_threshold"),
      word_option(
          "klass_choose", &UnmaskingOptions::klass_choose, kKlassChooseWords,
          "which stable positions are taken: all, the most confident, or the one that moved least"),
      quota_option()};
  entry.distributions = true;
  entry.remembers = true;
  entry.text = [](const UnmaskingOptions& options) {
    std::string text = fmt::format(", KL below {:g} for {}", options.kl_threshold,
                                   plural(options.kl_history, "step"));
    if (options.klass_choose != KlassChoose::kAll) {
      text += ", " + kKlassChooseWords[static_cast<size_t>(options.klass_choose)];
    }
    return text;
  };
  entry.select = [](StrategyStep& step) {
    return select_klass(step.score, step.prediction.stable, step.masked, step.options.threshold,
                        static_cast<int64_t>(step.due), step.options.klass_choose,
                        step.prediction.moved);
  };
  return entry;
}

}  // namespace blockscope
