// The caches of decoding by their names, and their parameters. Sources are in the caches' headers;
// what released code does differently is in docs/caches.md.
#pragma once

#include <cstdint>
#include <string>

namespace blockscope {

enum class CacheKind {
  kCommit,  // block-causal: finished blocks are committed by a pass of their own
  kBlockd,  // block-causal: by the pass that takes the next block's first step
  kBlock,   // Fast-dLLM v2: so too, and keys of the block's other sub-blocks are kept
  kNone,    // bidirectional: every pass computes the whole canvas
  kPrefix,  // Fast-dLLM: keys before the block stay as of its first pass
  kDual,    // Fast-dLLM: keys outside the block stay as of its first pass
  kDllm,    // dLLM-Cache: prompt and answer are refreshed at intervals, changed rows between
  kD2,      // d2Cache: certain masks, what was just decided, and what attention flows to
};

struct CacheOptions {
  CacheKind kind = CacheKind::kCommit;
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

/// Throws UsageError for an unknown name, listing the known ones.
CacheKind parse_cache(const std::string& name);
std::string cache_name(CacheKind kind);

}  // namespace blockscope
