// The values of an attention step that the recorder reads. They can outlive the step, and be copied
// from a device to the host on their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/ops.h"
#include "probe/policies/attention_policy.h"

namespace blockscope {

/// The values of one layer for the whole batch. What the level, step or run does not record is
/// undefined.
struct AttentionReads {
  enum class Exact : std::uint8_t { kUnknown, kUsed, kShadow };

  int64_t layer = 0;      // layer of the model
  at::Tensor q;           // [S, H, B, D]
  at::Tensor k, v;        // [S, K, B, D]
  at::Tensor rows;        // [R] int64, on the host, as AttentionView::rows; undefined: all
  at::Tensor present;     // [B] bool, as AttentionView::present; undefined: see `rows`
  AttentionParts used;    // the values that the policy used
  AttentionParts shadow;  // the exact values, if `used` is not exact
  Exact exactness = Exact::kUnknown;
  TopKSets sets;                    // top-k sets of the rows
  at::Tensor key_norm, value_norm;  // [S, K, k] float32, of the sets' keys; undefined: not recorded
  at::Tensor map;  // [S, map heads, T, N + T_in] float16; undefined: not of this layer or step
  int64_t map_internal = 0;  // T_in
  WeightSpread spread;       // of the rows; its tensors are undefined if it wasn't asked for

  /// The exact values; nullptr: unknown, or not needed.
  const AttentionParts* exact() const {
    if (exactness == Exact::kUnknown) return nullptr;
    return exactness == Exact::kUsed ? &used : &shadow;
  }

  /// All tensors that the step computed.
  std::vector<at::Tensor*> computed() {
    std::vector<at::Tensor*> all{&q,
                                 &k,
                                 &v,
                                 &present,
                                 &sets.index,
                                 &sets.probability,
                                 &sets.union_size,
                                 &sets.token_index,
                                 &key_norm,
                                 &value_norm,
                                 &map};
    const auto add = [&](const auto& tensors) {
      all.insert(all.end(), tensors.begin(), tensors.end());
    };
    add(spread.answer());
    add(used.tensors());
    add(shadow.tensors());
    return all;
  }

  /// The same on the host, with `rows` instead of `present`; none if no row is present.
  std::optional<AttentionReads> rows_known() const;
};

}  // namespace blockscope
