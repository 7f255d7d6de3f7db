// How the external part of the attention is obtained, per layer and step. `exact` reads the whole
// prefix every time; `flashblock` reuses an earlier step's external pair where its rule allows it.
// Prefill and commit passes are exact under every policy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "probe/model/forward_seams.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// The committed keys of a batch at one layer.
struct ExternalKeys {
  at::Tensor key;     // [S, K, N, D], N = longest committed prefix
  at::Tensor value;   // [S, K, N, D]
  at::Tensor length;  // [S] int64, committed positions of each sequence
};

/// What was used at one layer of one pass.
struct AttentionParts {
  at::Tensor out;           // [S, H, T, D] dtype of q
  at::Tensor external;      // [S, H, T, D] float32, A_out
  at::Tensor lse_external;  // [S, H, T] float32, L_out
  at::Tensor internal;      // [S, H, T, D] float32, A_in
  at::Tensor lse_internal;  // [S, H, T] float32, L_in
  at::Tensor reused;        // [S, H] bool; undefined: nothing was reused
  at::Tensor keys_read;     // [S, K] int64; undefined: every external key was read
};

class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;
  virtual std::string name() const = 0;

  /// Before the first layer of every pass.
  virtual void begin_pass(const PassContext& /*context*/) {}

  virtual AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) = 0;

  /// A finished sequence left the batch: the last slot moves to `slot` (as KvCache::remove).
  virtual void remove(int64_t /*slot*/) {}
};

}  // namespace blockscope
