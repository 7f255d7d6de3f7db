// How a run obtains the external part of the attention, per layer and step. `exact` reads the whole
// prefix every time. `flashblock` reuses an earlier step's external pair if its rule allows it.
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

/// The committed keys of a batch at one layer. Key n of sequence s is that of position
/// first[s] + n.
struct ExternalKeys {
  at::Tensor key;      // [S, K, N, D], N = longest committed prefix
  at::Tensor value;    // [S, K, N, D]
  at::Tensor length;   // [S] int64, on the host: keys of each sequence
  at::Tensor first{};  // [S] int64, on the host, for a layer with a window; undefined: 0

  /// Whether the layer sees only its newest keys. Policies that choose keys read them all there.
  bool windowed() const { return first.defined(); }
};

/// What attention used and returned at one layer of one pass.
struct AttentionParts {
  at::Tensor out;           // [S, H, T, D] dtype of q
  at::Tensor external;      // [S, H, T, D] float32, A_out; over the selected keys if there are any
  at::Tensor lse_external;  // [S, H, T] float32, L_out
  at::Tensor internal;      // [S, H, T, D] float32, A_in
  at::Tensor lse_internal;  // [S, H, T] float32, L_in
  at::Tensor reused;        // [S, H] bool, on the host; undefined: nothing was reused
  at::Tensor refreshed;     // [S, T] bool, on the host: rows that read the prefix in reusing heads,
                            // too; undefined: none
  at::Tensor keys_read;     // [S, K] int64; undefined: every external key was read
  at::Tensor selected;      // [S, K, k] int32, falling score, padded with -1: keys that a sparse
                            // policy read; -1 throughout: the sequence read its whole prefix;
                            // undefined: all sequences did
  at::Tensor residual;      // [S, H, T, D] float32: also merged into `out`, with
  at::Tensor lse_residual;  // [S, H, T]    its LSE, -inf: none; undefined: no sequence has one
  ExternalWeights weights;  // of an exact step over the whole prefix, if the input asks for them
  at::Tensor intervened;    // [S, H] bool, on the host: heads whose parts an intervention changed;
                            // undefined: none
  at::Tensor rows_scored;   // [S] int64, on the host: extra rows of D elements that each KV head
                            // read to choose its set and to make the residual (keys, values, a
                            // page's least and largest key); undefined: none

  /// Every tensor, some of them undefined.
  std::vector<at::Tensor*> tensors() {
    return {&out,          &external,       &lse_external, &internal,   &lse_internal,
            &reused,       &refreshed,      &keys_read,    &selected,   &residual,
            &lse_residual, &weights.weight, &weights.max,  &intervened, &rows_scored};
  }

  /// Whether `out` holds anything else than this step's attention over the whole prefix.
  bool approximate() const {
    return reused.defined() || selected.defined() || intervened.defined();
  }
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

/// Nanoseconds that a policy has spent choosing keys since it was made.
struct ChoosingTime {
  int64_t inline_ns = 0;  // within attend(), on the caller's thread
  int64_t beside_ns = 0;  // on a second thread, in parallel
  int64_t waited_ns = 0;  // the part of beside_ns that the caller waited for at the end of passes
};

class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;
  virtual std::string name() const = 0;

  /// Called before the first layer of every pass.
  virtual void begin_pass(const PassContext& /*context*/) {}

  /// Whether interventions change what it returns (AttentionParts::intervened).
  virtual bool intervenes() const { return false; }
  /// The residual stream that replaces `hidden` [S, R, hidden_size], which enters a layer at the
  /// block's positions `places` [R] int64; undefined: it stays.
  virtual at::Tensor patched_hidden(int64_t /*layer*/, const at::Tensor& /*hidden*/,
                                    const at::Tensor& /*places*/) {
    return {};
  }
  /// The number of rows of the block of the pass's sequence `slot` that read the prefix in every
  /// head; 0: heads that may reuse do so for all rows. Asked after begin_pass() for denoising
  /// passes and commits; `rows`: those that the pass computes.
  virtual int64_t rows_read(int64_t /*slot*/, int64_t rows) const { return rows; }
  virtual AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) = 0;

  /// A key for passes that can share one device graph (pass_graphs.h), asked after begin_pass().
  /// Passes of one policy with equal keys run the same operators over the same tensors, and keep
  /// none of them. One such pass may be captured and launched in place of the others, without calls
  /// of attend(). Keys of different kinds of policies are not comparable. None: not repeatable.
  virtual std::optional<std::vector<int64_t>> repeats() const { return std::nullopt; }

  /// Called after the last layer, before the pass's keys are committed. Ends what runs in parallel
  /// with the layers.
  virtual void end_pass() {}

  /// The most keys that a step selects per KV head, from prefixes of up to `longest` keys; 0: the
  /// policy selects none.
  virtual int64_t selected_size(int64_t /*longest*/) const { return 0; }
  /// Whether the policy keeps the attention over unselected keys and merges it at later steps.
  virtual bool keeps_residual() const { return false; }

  /// Zero for policies that choose nothing. Must not be called while a pass runs.
  virtual ChoosingTime choosing_time() const { return {}; }

  /// A finished sequence left the batch: the last slot moves to `slot` (as KvCache::remove).
  virtual void remove(int64_t /*slot*/) {}
};

}  // namespace blockscope
