// A trace of one block under a sparse policy, whose sets are written down here: what the Selection
// panel must show of it can be counted by hand.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/analysis/small_set_trace.h"

namespace blockscope::testing {

inline constexpr std::int32_t kSparseContext = 3000;
inline constexpr float kNoKeyRead = -std::numeric_limits<float>::infinity();

/// One step: B = 2, set_size 4, selected_size 3. `used`: L_S of both queries; L_out is 0.
inline SmallStep sparse_step(std::int64_t number, std::vector<std::int32_t> selected,
                             std::vector<std::int32_t> exact, float used) {
  SmallStep step;
  step.step = number;
  step.context_length = kSparseContext;
  step.ints[Field::attention_selected] = std::move(selected);
  step.ints[Field::set_topk] = std::move(exact);
  step.floats[Field::set_probability] = {0.4F, 0.2F, 0.1F, 0.05F};
  step.floats[Field::attention_lse_external] = {used, used};
  step.floats[Field::shadow_lse_external] = {0.0F, 0.0F};
  step.floats[Field::shadow_output_error] = {0.25F};
  return step;
}

/// Step 1 reads everything, 2 reads {10, 2900, 77}, 3 reads no key, 4 is not recorded.
inline std::string sparse_trace(const std::string& path) {
  SmallSetTrace trace(path, 2, 4, RecordLevel::sets, R"({"version":"test","policy":"mage"})", 3);
  std::vector<std::int64_t> prompt(kSparseContext);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int64_t>(i % 90);
  trace.sequence(prompt);
  trace.add(sparse_step(1, {-1, -1, -1}, {10, 2900, 500, 77}, 0.0F));
  trace.add(sparse_step(2, {10, 2900, 77}, {2900, 10, 1500, 77}, std::log(0.5F)));
  trace.add(sparse_step(3, {-1, -1, -1}, {2900, 10, 1500, 77}, kNoKeyRead));
  SmallStep last;
  last.step = 4;
  last.context_length = kSparseContext;
  last.recorded = false;
  trace.add(last);
  trace.end(1.0F);
  return trace.finish();
}

}  // namespace blockscope::testing
