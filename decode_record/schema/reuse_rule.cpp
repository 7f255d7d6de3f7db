#include "decode_record/schema/reuse_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "decode_record/base/error.h"

namespace blockscope {

ReuseCount parse_reuse_count(std::string_view where, std::string_view name) {
  const auto* const found = std::ranges::find(kReuseCounts, name);
  if (found == kReuseCounts.end()) {
    throw UsageError(
        fmt::format("{}: expected {}, got {}", where, fmt::join(kReuseCounts, " or "), name));
  }
  return static_cast<ReuseCount>(found - kReuseCounts.begin());
}

std::vector<bool> refreshed_rows(ReuseRefresh refresh, const std::vector<bool>& unread,
                                 const std::vector<bool>& masked) {
  if (refresh == ReuseRefresh::all) return std::vector<bool>(unread.size(), true);
  std::vector<bool> rows = unread;
  if (refresh == ReuseRefresh::rows) return rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool after = i > 0 && unread[i - 1];
    const bool before = i + 1 < rows.size() && unread[i + 1];
    if (masked[i] && (after || before)) rows[i] = true;
  }
  return rows;
}

bool KeptCounter::reuses(std::int64_t step, std::int64_t changed, std::int64_t decided,
                         const std::vector<bool>& masked, const std::vector<bool>& changed_rows) {
  const bool reuses = counter_.reuses(step, changed, decided);
  if (!reuses) {
    read_step_ = step;
    decided_.assign(masked.size(), false);
  }
  age_ = step - read_step_;
  decided_.resize(masked.size());
  kinds_.resize(masked.size());
  for (std::size_t i = 0; i < masked.size(); ++i) {
    if (reuses && changed_rows[i]) decided_[i] = true;
    const RowKind kind = masked[i]     ? RowKind::mask
                         : decided_[i] ? RowKind::decided
                                       : RowKind::known;
    kinds_[i] = static_cast<std::uint8_t>(kind);
  }
  return reuses;
}

}  // namespace blockscope
