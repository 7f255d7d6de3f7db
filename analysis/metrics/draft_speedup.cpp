#include "analysis/metrics/draft_speedup.h"

#include <algorithm>

namespace blockscope {
namespace {

constexpr double kNsPerMs = 1e6;

}  // namespace

RoundTimes round_times(const std::vector<DraftCost>& costs) {
  RoundTimes times;
  for (std::int64_t b = 1; b <= costs.back().block_length; ++b) {
    const auto above = std::ranges::lower_bound(costs, b, {}, &DraftCost::block_length);
    const auto below = above->block_length == b ? above : above - 1;
    const auto width = static_cast<double>(above->block_length - below->block_length);
    const double share = width > 0.0 ? static_cast<double>(b - below->block_length) / width : 0.0;
    const auto between = [&](std::int64_t DraftCost::*member) {
      const auto low = static_cast<double>((*below).*member);
      return low + share * (static_cast<double>((*above).*member) - low);
    };
    times.draft_ns.push_back(between(&DraftCost::draft_ns));
    times.target_ns.push_back(between(&DraftCost::target_ns));
  }
  return times;
}

void DraftSpeedup::expect(std::int64_t block_length) {
  for (auto* sums : {&tokens_, &draft_ns_, &target_ns_, &alone_ns_}) {
    sums->resize(static_cast<std::size_t>(block_length), 0.0);
  }
}

void DraftSpeedup::add(const std::vector<std::int64_t>& rounds_of_length,
                       const std::vector<DraftCost>& costs) {
  const RoundTimes times = round_times(costs);
  const std::size_t lengths = rounds_of_length.size();
  for (std::size_t i = 0; i < lengths; ++i) {  // blocks of i + 1 positions
    std::int64_t tokens = 0;
    std::int64_t rounds = 0;
    for (std::size_t l = 0; l < lengths; ++l) {
      tokens += rounds_of_length[l] * static_cast<std::int64_t>(std::min(l, i) + 1);
      rounds += rounds_of_length[l];
    }
    tokens_[i] += static_cast<double>(tokens);
    draft_ns_[i] += static_cast<double>(rounds) * times.draft_ns[i];
    target_ns_[i] += static_cast<double>(rounds) * times.target_ns[i];
    alone_ns_[i] += static_cast<double>(tokens) * times.target_ns[0];
    if (i == 0) rounds_ += rounds;
  }
}

std::vector<ResultArray> DraftSpeedup::arrays() const {
  ResultAxis lengths{"block_length", {}, {}};
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    lengths.index.push_back(static_cast<double>(i + 1));
  }
  const auto array = [&](const char* name, const char* unit, const char* description,
                         const auto& value_at) {
    ResultArray result{name, unit, description, {lengths}, {}, {}};
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      result.values.push_back(value_at(i));
      result.terms.push_back(rounds_);
    }
    return result;
  };
  const auto rounds = static_cast<double>(rounds_);
  return {array("tokens_per_round", "tokens", "mean length of the rounds, cut to the block",
                [&](std::size_t i) { return tokens_[i] / rounds; }),
          array("draft_time", "ms", "time that the draft adds to a round",
                [&](std::size_t i) { return draft_ns_[i] / rounds / kNsPerMs; }),
          array("target_time", "ms", "time of the target's pass over a block",
                [&](std::size_t i) { return target_ns_[i] / rounds / kNsPerMs; }),
          array("speedup", "1", "predicted tokens/s relative to the target alone",
                [&](std::size_t i) { return alone_ns_[i] / (draft_ns_[i] + target_ns_[i]); })};
}

}  // namespace blockscope
