// Mixture-of-experts layers as a config.json describes them: Qwen3-MoE's keys, which SDAR-MoE
// shares (transformers, `Qwen3MoeConfig`; its version 5 says num_local_experts for num_experts).
// LLaDA2's keys: llada2_config.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/checkpoint/json_object.h"

namespace blockscope {

struct MoeConfig {
  std::int64_t num_experts = 0;        // E
  std::int64_t experts_per_token = 0;  // chosen by the router, at most E
  std::int64_t intermediate_size = 0;  // of one expert
  bool normalise = false;              // weights of the chosen experts sum to 1
  std::vector<bool> sparse;            // [num_layers]; false: an ordinary MLP

  bool sigmoid = false;          // scores are sigmoids, chosen with a bias (LLaDA2); else a softmax
  std::int64_t num_groups = 1;   // of neighbouring experts, a divisor of E
  std::int64_t kept_groups = 1;  // experts are chosen from the best of the groups
  double scaling = 1.0;          // times the weights of the chosen experts
  std::int64_t shared_size = 0;  // width of what every row passes beside its experts; 0: none
};

/// nullopt where the config has no experts. `intermediate_size` of the config is that of the
/// ordinary layers. Throws CheckpointError naming the key.
std::optional<MoeConfig> parse_moe_config(const JsonObject& file, std::int64_t num_layers,
                                          std::int64_t max_width);

}  // namespace blockscope
