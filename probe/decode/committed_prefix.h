// Keys and values of a prompt's whole blocks, computed once and decoded from many times: a study
// runs one prompt under a dozen policies, and prefill is the same under all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/checkpoint/model_config.h"
#include "probe/decode/decode_observer.h"

namespace blockscope {

struct CommittedPrefix {
  int64_t length = 0;             // positions, from 0
  std::vector<at::Tensor> key;    // by layer [1, K, length, D], after QK-norm and RoPE
  std::vector<at::Tensor> value;  // by layer [1, K, length, D]
  NextToken next_token;           // behind it, where decoding has sub-blocks
};

/// Keys and values from a normal distribution with standard deviation 1, the norm that QK-norm
/// leaves keys: for timing contexts whose prefill would take hours. The same seed gives the same.
CommittedPrefix random_prefix(const ModelConfig& config, int64_t length, at::ScalarType dtype,
                              uint64_t seed);

/// Throws Error when the prefix is not one of this model with `length` positions.
void check_prefix(const CommittedPrefix& prefix, const ModelConfig& config, int64_t length);

}  // namespace blockscope
