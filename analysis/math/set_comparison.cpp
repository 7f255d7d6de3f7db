#include "analysis/math/set_comparison.h"

#include <algorithm>
#include <limits>

#include "analysis/math/position_sets.h"

namespace blockscope {

double SetComparison::accuracy() const {
  if (compared == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(hits) / static_cast<double>(compared);
}

SetComparison compare_sets(std::span<const std::int32_t> chosen,
                           std::span<const std::int32_t> exact, std::size_t compared) {
  chosen = chosen.first(set_length(chosen));
  exact = exact.first(set_length(exact));
  SetComparison result;
  result.compared = std::min(compared, exact.size());
  RankTable table;
  std::vector<std::int32_t> ranks(chosen.size());
  table.assign(exact);
  table.ranks_of(chosen, ranks);
  const auto within = static_cast<std::int32_t>(result.compared);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const bool hit = ranks[i] >= 0 && ranks[i] < within;
    result.keys.push_back({chosen[i], static_cast<std::int32_t>(i), std::max(-1, ranks[i]),
                           hit ? KeyMark::both : KeyMark::chosen_only});
    (hit ? result.hits : result.extra) += 1;
  }
  exact = exact.first(result.compared);
  ranks.resize(exact.size());
  table.assign(chosen);
  table.ranks_of(exact, ranks);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (ranks[i] >= 0) continue;
    result.keys.push_back({exact[i], -1, static_cast<std::int32_t>(i), KeyMark::exact_only});
    result.misses += 1;
  }
  std::ranges::sort(result.keys, {}, &ComparedKey::position);
  return result;
}

}  // namespace blockscope
