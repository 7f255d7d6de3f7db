#include "analysis/metrics/layer_counts.h"

#include <algorithm>

namespace blockscope {

void LayerCounts::bump(Counts& counts, std::string_view reason, std::int64_t by) {
  if (by == 0) return;
  const auto found = counts.find(reason);
  if (found != counts.end()) {
    found->second += by;
  } else {
    counts.emplace(std::string(reason), by);
  }
}

void LayerCounts::add_to(LeftOut& left_out) const {
  Counts rows;
  for (const Layer& layer : layers_) {
    for (const auto& [reason, count] : layer.rows) {
      std::int64_t& most = rows[reason];
      most = std::max(most, count);
    }
    for (const auto& [reason, count] : layer.values) left_out[reason] += count;
  }
  for (const auto& [reason, count] : rows) left_out[reason] += count;
}

}  // namespace blockscope
