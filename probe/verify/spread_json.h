// JSON of values over several runs of the same prompts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "probe/verify/agreement.h"

namespace blockscope {

using Json = nlohmann::ordered_json;  ///< keys in the order of the text; NaN is written as null

inline nlohmann::ordered_json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}};
}

/// `a`, `b`: the names of the two runs.
inline nlohmann::ordered_json scores_json(const PairedScores& scores, const std::string& a,
                                          const std::string& b) {
  if (scores.count == 0) return {{"count", 0}};
  return {{"count", scores.count},
          {a, scores.mean_a},
          {b, scores.mean_b},
          {a + "_standard_error", scores.error_a},
          {b + "_standard_error", scores.error_b},
          {"difference_standard_error", scores.error_difference},
          {"better", scores.better},
          {"worse", scores.worse},
          {"sign_test_p", scores.sign_test},
          {"within_noise", scores.within_noise()}};
}

}  // namespace blockscope
