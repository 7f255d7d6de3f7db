// Mixture-of-experts layers. Each family with experts reads its keys of config.json.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

struct MoeConfig {
  std::int64_t num_experts = 0;        // E
  std::int64_t experts_per_token = 0;  // experts that the router chooses, at most E
  std::int64_t intermediate_size = 0;  // intermediate size of one expert
  bool normalise = false;              // weights of the chosen experts sum to 1
  std::vector<bool> sparse;            // [num_layers]; false: an ordinary MLP

  bool sigmoid = false;              // sigmoid scores, chosen with a bias (LLaDA2); else a softmax
  std::int64_t num_groups = 1;       // groups of neighbouring experts, a divisor of E
  std::int64_t kept_groups = 1;      // best groups, from which experts are chosen
  double scaling = 1.0;              // factor of the chosen experts' weights
  std::int64_t shared_size = 0;      // width of the shared expert, which every row uses; 0: none
  std::int64_t expert_capacity = 0;  // block routing (LLaDA2.2): experts that a block of
  std::int64_t routing_block = 0;    // `routing_block` rows may use; 0: no block routing
};

}  // namespace blockscope
