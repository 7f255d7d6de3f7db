// How the external part of the attention is obtained, per layer and step. `exact` reads the whole
// prefix every time; `flashblock` reuses an earlier step's external pair where its rule allows it.
// Prefill and commit passes are exact under every policy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "probe/model/forward_seams.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// The committed keys of a batch at one layer.
struct ExternalKeys {
  at::Tensor key;     // [S, K, N, D], N = longest committed prefix
  at::Tensor value;   // [S, K, N, D]
  at::Tensor length;  // [S] int64, on the host: committed positions of each sequence
};

/// What was used at one layer of one pass.
struct AttentionParts {
  at::Tensor out;           // [S, H, T, D] dtype of q
  at::Tensor external;      // [S, H, T, D] float32, A_out; under a selection: of the selected keys
  at::Tensor lse_external;  // [S, H, T] float32, L_out
  at::Tensor internal;      // [S, H, T, D] float32, A_in
  at::Tensor lse_internal;  // [S, H, T] float32, L_in
  at::Tensor reused;        // [S, H] bool, on the host; undefined: nothing was reused
  at::Tensor keys_read;     // [S, K] int64; undefined: every external key was read
  at::Tensor selected;      // [S, K, k] int32, falling score, -1 behind the last: keys a sparse
                            // policy read; -1 throughout: the sequence read its whole prefix;
                            // undefined: all sequences did
  at::Tensor residual;      // [S, H, T, D] float32: merged into `out` beside the selected keys, and
  at::Tensor lse_residual;  // [S, H, T]    its lse, -inf: none; undefined: no sequence has one
  ExternalWeights weights;  // of an exact step over the whole prefix, where the input asks for them
  at::Tensor rows_scored;   // [S] int64, on the host: rows of D elements (a key, a value, a page's
                            // least or largest key) that each KV head read besides, to choose its
                            // set and to keep the residual of the others; undefined: none

  /// Something other than this step's attention over the whole prefix went into `out`.
  bool approximate() const { return reused.defined() || selected.defined(); }
};

/// The parts that every attention operator of kernels/ops.h returns.
template <class Result>
AttentionParts parts_of(Result result) {
  AttentionParts parts;
  parts.out = std::move(result.out);
  parts.external = std::move(result.external);
  parts.lse_external = std::move(result.lse_external);
  parts.internal = std::move(result.internal);
  parts.lse_internal = std::move(result.lse_internal);
  return parts;
}

/// Nanoseconds a policy spent choosing keys since it was made.
struct ChoosingTime {
  int64_t inline_ns = 0;  // within attend(), on the caller's thread
  int64_t beside_ns = 0;  // on a second thread
  int64_t waited_ns = 0;  // of these, what the caller waited for at the end of its passes
};

class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;
  virtual std::string name() const = 0;

  /// Before the first layer of every pass.
  virtual void begin_pass(const PassContext& /*context*/) {}

  virtual AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) = 0;

  /// Whether the pass that has begun does the same as others with equal answers: the same operators
  /// over the same tensors, of which it keeps none. Then one may be captured as a graph of the
  /// device (pass_graphs.h) and launched in place of the others, and attend() is not called for
  /// them. Equal answers mean nothing from one kind of policy to another. None: it may not.
  virtual std::optional<std::vector<int64_t>> repeats() const { return std::nullopt; }

  /// After the last layer, before the pass's keys are committed: what runs beside the layers ends.
  virtual void end_pass() {}

  /// Keys per KV head that a step selects at most, over prefixes of up to `longest` keys; 0: the
  /// policy selects none.
  virtual int64_t selected_size(int64_t /*longest*/) const { return 0; }
  /// Keeps the attention over unselected keys and merges it at later steps.
  virtual bool keeps_residual() const { return false; }

  /// Zero for policies that choose nothing. Not while a pass runs.
  virtual ChoosingTime choosing_time() const { return {}; }

  /// A finished sequence left the batch: the last slot moves to `slot` (as KvCache::remove).
  virtual void remove(int64_t /*slot*/) {}
};

}  // namespace blockscope
