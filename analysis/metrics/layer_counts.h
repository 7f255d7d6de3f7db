// Counts the terms that a metric left out, per layer and without locks, in StepMetric::add. Reasons
// have the names of left_out.h if one fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/metrics/left_out.h"

namespace blockscope {

class LayerCounts {
 public:
  LayerCounts() = default;
  explicit LayerCounts(std::size_t layers) : layers_(layers) {}

  /// Counts a whole row. Every layer sees the same rows, so a row counts once, not once per layer.
  void row(std::size_t layer, std::string_view reason) { bump(layers_[layer].rows, reason, 1); }
  /// Counts single values of one layer.
  void values(std::size_t layer, std::string_view reason, std::int64_t count = 1) {
    bump(layers_[layer].values, reason, count);
  }
  /// Adds the counts to MetricResult::left_out, without reasons that never occurred.
  void add_to(LeftOut& left_out) const;

 private:
  using Counts = std::map<std::string, std::int64_t, std::less<>>;
  struct Layer {
    Counts rows;
    Counts values;
  };
  static void bump(Counts& counts, std::string_view reason, std::int64_t by);
  std::vector<Layer> layers_;
};

}  // namespace blockscope
