// The parameters of the decoding caches. Names, ranges and sources: cache_table.h.
#pragma once

#include <cstdint>
#include <string>

#include "probe/choices/own_option.h"

namespace blockscope {

/// A cache's name and the options of all caches. A cache reads only the options of its entry.
struct CacheOptions {
  std::string cache = "commit";
  int64_t prompt_interval = 50;  // dllm-cache: steps between two refreshes of the prompt (kp)
  int64_t answer_interval = 2;   // dllm-cache: the same for the answer (kr)
  double transfer_ratio = 0.25;  // dllm-cache: share of answer rows computed between them (rho)
  int64_t current_k = 32;        // d2cache: most masks recomputed at a step
  double sigma = 10.0;           // d2cache: width of the certainty density, in positions
  double rollout_p = 0.1;        // d2cache: share of attention rollout that recomputed rows cover
  int64_t inflate_window = 4;    // d2cache: gaps up to this wide are filled; 0: none
  bool as_released = false;      // d2cache: rank masks by their first confidence
  OwnValues own;                 // a plugin's options

  bool operator==(const CacheOptions&) const = default;
};

}  // namespace blockscope
