#include "analysis/calibration/effect_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ',') {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

/// NaN: not a number.
double number_of(const std::string& text) {
  double value = kNotMeasured;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : kNotMeasured;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw CalibrationError(fmt::format(
      "{}: {}. HINT: `blockscope study knockout MODEL -o FOLDER` writes FOLDER/knockout.csv", path,
      what));
}

/// KL of freezing each head, [layers][heads].
HeadMatrix<double> effects_of(const std::string& path, const ReuseModel& model) {
  std::ifstream file(path);
  if (!file) refuse(path, "can't be read");
  std::string line;
  std::getline(file, line);
  std::map<std::string, std::size_t> columns;
  for (const std::string& name : fields_of(line)) {
    if (!columns.emplace(name, columns.size()).second) {
      refuse(path, fmt::format("expected each column once, got {} twice", name));
    }
  }
  for (const char* name : {"what", "layer", "head", "kl"}) {
    if (!columns.contains(name)) refuse(path, fmt::format("expected a column {}, got none", name));
  }
  HeadMatrix<double> effects(
      static_cast<std::size_t>(model.layers),
      std::vector<double>(static_cast<std::size_t>(model.heads), kNotMeasured));
  for (std::int64_t number = 2; std::getline(file, line); ++number) {
    std::vector<std::string> fields = fields_of(line);
    fields.resize(std::max(fields.size(), columns.size()));
    if (fields[columns.at("what")] != "frozen") continue;
    const double layer = number_of(fields[columns.at("layer")]);
    const double head = number_of(fields[columns.at("head")]);
    const double kl = number_of(fields[columns.at("kl")]);
    const auto index = [](double x, std::int64_t count) {
      return x >= 0.0 && x < static_cast<double>(count) && x == std::floor(x);
    };
    if (!index(layer, model.layers) || !index(head, model.heads) || !std::isfinite(kl)) {
      refuse(path, fmt::format("line {}: expected a layer below {}, a head below {} and a KL, got "
                               "{}, {}, {}",
                               number, model.layers, model.heads, fields[columns.at("layer")],
                               fields[columns.at("head")], fields[columns.at("kl")]));
    }
    double& effect = effects[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)];
    if (!std::isnan(effect)) {
      refuse(path, fmt::format("line {}: expected one row for layer {}, head {}, got another",
                               number, layer, head));
    }
    effect = kl;
  }
  for (std::size_t layer = 0; layer < effects.size(); ++layer) {
    for (std::size_t head = 0; head < effects[layer].size(); ++head) {
      if (!std::isnan(effects[layer][head])) continue;
      refuse(path, fmt::format("layer {}, head {}: expected a row \"frozen\" for each of {} x {} "
                               "heads, got none",
                               layer, head, model.layers, model.heads));
    }
  }
  return effects;
}

}  // namespace

void order_by_effect(const std::string& path, CalibrationSums& sums) {
  if (sums.ranges.size() > 1) {
    throw UsageError(
        "--by-effect: expected one range of steps, because an effect is that of the "
        "whole block, got several. HINT: leave out --by-step");
  }
  const HeadMatrix<double> effects = effects_of(path, sums.model);
  std::vector<double> sorted;
  for (const std::vector<double>& layer : effects) {
    sorted.insert(sorted.end(), layer.begin(), layer.end());
  }
  std::ranges::sort(sorted);
  const auto last = static_cast<double>(std::max<std::size_t>(sorted.size() - 1, 1));
  for (std::size_t layer = 0; layer < effects.size(); ++layer) {
    for (std::size_t head = 0; head < effects[layer].size(); ++head) {
      double& rank = sums.similarity.front()[layer][head];
      if (std::isnan(rank)) continue;  // not recorded: never reuses
      const auto before = std::ranges::lower_bound(sorted, effects[layer][head]) - sorted.begin();
      rank = 1.0 - static_cast<double>(before) / last;
      for (auto* of : {&sums.standard_deviation, &sums.standard_error, &sums.p5}) {
        of->front()[layer][head] = kNotMeasured;
      }
    }
  }
  sums.ranked = true;
  sums.statistic = kEffectRank;
  sums.computed_from += ", " + path.substr(path.find_last_of('/') + 1);
}

}  // namespace blockscope
