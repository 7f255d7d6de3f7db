// One pass over a batch with random tensors, for policies seen alone.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "probe/policies/attention_policy.h"
#include "probe/policies/exact_policy.h"

namespace blockscope::testing {

/// `lengths`: external keys of each sequence. Every sequence is at denoising step 1 of block 0.
struct PolicyPass {
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kKvHeads = 2;
  static constexpr int64_t kBlock = 3;
  static constexpr int64_t kDim = 5;

  at::Tensor q, k, v, key, value, length;
  PassContext context;

  explicit PolicyPass(const std::vector<int64_t>& lengths) {
    const auto sequences = static_cast<int64_t>(lengths.size());
    int64_t longest = 0;
    for (const int64_t n : lengths) longest = std::max(longest, n);
    q = at::randn({sequences, kHeads, kBlock, kDim});
    k = at::randn({sequences, kKvHeads, kBlock, kDim});
    v = at::randn({sequences, kKvHeads, kBlock, kDim});
    key = at::randn({sequences, kKvHeads, longest, kDim});
    value = at::randn({sequences, kKvHeads, longest, kDim});
    length = at::tensor(lengths, at::kLong);
    context.sequences.resize(lengths.size());
    for (size_t s = 0; s < lengths.size(); ++s) {
      SequencePass& pass = context.sequences[s];
      pass.sequence = static_cast<int64_t>(s);
      pass.context_length = lengths[s];
      pass.planned_steps = 20;
      pass.prompt_hash = 100 + s;
      at_step(s, 1, 1);
    }
  }

  PolicyPass& at_step(size_t slot, int64_t step, int64_t run_step) {
    context.sequences[slot].kind = PassKind::denoise;
    context.sequences[slot].step = step;
    context.sequences[slot].run_step = run_step;
    return *this;
  }
  /// The next step: other queries over the same prefix.
  PolicyPass next() const {
    PolicyPass later = *this;
    later.q = at::randn_like(q);
    later.k = at::randn_like(k);
    later.v = at::randn_like(v);
    for (SequencePass& pass : later.context.sequences) {
      ++pass.step;
      ++pass.run_step;
    }
    return later;
  }

  AttentionInput input(int64_t layer = 0) const { return {layer, q, k, v, 0.4}; }
  ExternalKeys external() const { return {key, value, length}; }
  AttentionParts exact(int64_t layer = 0) const {
    return exact_attention(input(layer), external());
  }
  AttentionParts run(AttentionPolicy& policy, int64_t layer = 0) const {
    policy.begin_pass(context);
    AttentionParts parts = policy.attend(input(layer), external());
    policy.end_pass();
    return parts;
  }
};

}  // namespace blockscope::testing
