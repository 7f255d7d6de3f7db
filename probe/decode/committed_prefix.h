// Keys and values of a prompt's whole blocks, computed once and used by many runs. A study decodes
// one prompt under a dozen policies, and prefill is the same for all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/checkpoint/model_config.h"
#include "probe/decode/decode_observer.h"

namespace blockscope {

struct CommittedPrefix {
  int64_t length = 0;  // positions, from 0
  // By layer [1, K, held, D], after QK-norm and RoPE. A layer with a window holds only the newest.
  std::vector<at::Tensor> key;
  std::vector<at::Tensor> value;
  NextToken next_token;  // the token after the prefix; only for models with sub-blocks
};

/// Keys and values from a standard normal distribution, which gives keys the norm that QK-norm
/// gives them. For timing contexts whose prefill would take hours. Equal seeds give equal values.
CommittedPrefix random_prefix(const ModelConfig& config, int64_t length, at::ScalarType dtype,
                              uint64_t seed);

/// Throws Error unless the prefix fits this model and has `length` positions.
void check_prefix(const CommittedPrefix& prefix, const ModelConfig& config, int64_t length);

class KvCache;
/// Puts a prefix of `length` positions into an empty slot. Throws as check_prefix() does.
void load_prefix(const CommittedPrefix& prefix, const ModelConfig& config, int64_t slot,
                 int64_t length, KvCache& cache);
/// What the cache's first slot holds, copied.
CommittedPrefix copied_prefix(const KvCache& cache);

}  // namespace blockscope
