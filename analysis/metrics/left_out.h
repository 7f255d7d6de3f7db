// Terms that are not in the means, by reason: the common names of reasons, and the counts that need
// only the steps of a block.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "analysis/pass/block_index.h"

namespace blockscope {

inline constexpr const char* kNoPrefix = "rows without a prefix";
inline constexpr const char* kBehindGap = "steps behind a gap";
inline constexpr const char* kOneStep = "blocks with one step";
inline constexpr const char* kNonFinite = "values that are NaN or infinite";
inline constexpr const char* kUnknownWeights = "values of heads that reused A_out";
inline constexpr const char* kZeroVector = "vectors of length 0";

using LeftOut = std::map<std::string, std::int64_t>;

/// Counts what a metric over adjacent recorded steps leaves out of a block: kBehindGap (recorded
/// steps after a step that was not recorded) and kOneStep.
void count_missing_pairs(const BlockSteps& block, LeftOut& counts);
/// Counts kNoPrefix: recorded steps with N = 0.
void count_rows_without_prefix(const BlockSteps& block, LeftOut& counts);

/// Steps of one layer under one tau that a metric of reuse leaves out.
struct LeftOutSteps {
  std::int64_t hidden = 0;      ///< a gap hides the step whose pair would be reused
  std::int64_t unknown = 0;     ///< /summary has no such rule
  std::int64_t non_finite = 0;  ///< heads with values that are NaN or infinite
};
/// Adds the counts of one tau over all layers. Every layer sees the same steps, so a step counts
/// once. `tau`: as text; `what` the summary would have: "error".
void count_left_out_steps(const std::vector<LeftOutSteps>& layers, const std::string& tau,
                          const std::string& what, LeftOut& counts);

/// The counts that are not zero.
LeftOut without_zeros(LeftOut counts);

}  // namespace blockscope
