// The parameters of the decoding caches. Names, ranges and sources: cache_table.h.
#pragma once

#include <cstdint>
#include <string>

namespace blockscope {

/// A cache's name and the options of all caches; each heeds those of its entry.
struct CacheOptions {
  std::string cache = "commit";
  int64_t prompt_interval = 50;  // dllm-cache: steps between two refreshes of the prompt (kp)
  int64_t answer_interval = 2;   // dllm-cache: of the answer (kr)
  double transfer_ratio = 0.25;  // dllm-cache: share of answer rows refreshed between them (rho)
  int64_t current_k = 32;        // d2cache: masks recomputed at a step, at most
  double sigma = 10.0;           // d2cache: width of the certainty density, in positions
  double rollout_p = 0.1;        // d2cache: attention rollout covered by recomputed other rows
  int64_t inflate_window = 4;    // d2cache: gaps up to this wide are filled; 0: none
  bool as_released = false;      // d2cache: certainty by the first step's confidences

  bool operator==(const CacheOptions&) const = default;
};

}  // namespace blockscope
