// What a pass shows to an observer, as calls that can be made again. A pass that is a graph shows
// the same tensors after every launch, with new values (pass_graphs.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/model/router_choice.h"
#include "probe/policies/attention_policy.h"

namespace blockscope {

/// A call of DecodeObserver::on_hidden.
struct ShownHidden {
  int64_t layer = 0;
  at::Tensor hidden;
};

/// A call of DecodeObserver::on_router.
struct ShownRouter {
  int64_t layer = 0;
  RouterChoice choice;
};

/// A call of DecodeObserver::on_attention: the members of an AttentionView.
struct ShownAttention {
  ShownAttention(const AttentionInput& input, const ExternalKeys& keys, AttentionParts parts);

  int64_t layer = 0;
  double scale = 1.0;
  at::Tensor q, k, v;
  ExternalKeys external;
  AttentionParts used;
  std::optional<AttentionParts> shadow;  // the exact values, if `used` is approximate
  at::Tensor rows, present;              // undefined: a view without them
  std::optional<WeightSpread> spread;
};

using ShownCall = std::variant<ShownHidden, ShownRouter, ShownAttention>;

/// Makes the call.
void show(const ShownCall& call, const PassContext& context, DecodeObserver& observer);

/// Makes tensors of a device contiguous where they leave gaps in their memory, so that copied() can
/// copy them.
void close_gaps(ShownCall& call);

/// The same calls with copies of a device's tensors, which nobody writes to later. Keys and values
/// are not copied (see DecodeObserver). All tensors of a type are copied at once, because a copy
/// costs as much as a kernel.
std::vector<ShownCall> copied(const std::vector<ShownCall>& calls);

}  // namespace blockscope
