// Mixture-of-experts layers. Which keys of config.json say so: qwen_family.cpp, llada2_family.cpp.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace blockscope
