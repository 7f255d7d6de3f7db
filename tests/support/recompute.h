// Decoding without a KV cache, straight from the definition: every pass runs the whole sequence so
// far, with a block-causal mask (block length 1: causal) over dense attention scores.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "probe/model/block_diffusion_model.h"
#include "probe/model/forward_seams.h"

namespace blockscope::testing {

/// Dense attention in float64; position i sees j if j's block is not after i's.
class DenseSeams : public ForwardSeams {
 public:
  explicit DenseSeams(int64_t block_length) : block_length_(block_length) {}

  at::Tensor attention(const AttentionInput& input) override {
    const int64_t group = input.q.size(1) / input.k.size(1);
    const at::Tensor q = input.q.to(at::kDouble);
    const at::Tensor k = input.k.to(at::kDouble).repeat_interleave(group, 1);
    const at::Tensor v = input.v.to(at::kDouble).repeat_interleave(group, 1);
    const at::Tensor block = at::arange(q.size(2)).div(block_length_, "floor");
    const at::Tensor hidden = block.unsqueeze(0) > block.unsqueeze(1);
    const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * input.scale;
    return at::matmul(at::softmax(
                          scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1),
                      v)
        .to(input.q.scalar_type());
  }

 private:
  int64_t block_length_;
};

/// Logits [count, V] of the last `count` of `tokens`.
inline at::Tensor last_logits(const BlockDiffusionModel& model, const std::vector<int64_t>& tokens,
                              int64_t count, int64_t block_length) {
  DenseSeams seams(block_length);
  const int64_t length = static_cast<int64_t>(tokens.size());
  const at::Tensor hidden = model.forward(at::tensor(tokens, at::kLong).unsqueeze(0),
                                          at::arange(length, at::kLong).unsqueeze(0), seams);
  return model.logits(hidden[0].narrow(0, length - count, count));
}

/// Greedy autoregressive tokens: the argmax after the whole text, again and again.
inline std::vector<int64_t> recompute_autoregressive(const BlockDiffusionModel& model,
                                                     std::vector<int64_t> tokens, int64_t count) {
  std::vector<int64_t> generated;
  for (int64_t i = 0; i < count; ++i) {
    generated.push_back(last_logits(model, tokens, 1, 1)[0].argmax().item<int64_t>());
    tokens.push_back(generated.back());
  }
  return generated;
}

/// Greedy low_confidence_static with one token per step: every position after the prompt, up to the
/// end of the last block. A mask as argmax uses up its step and stays.
inline std::vector<int64_t> recompute_blocks(const BlockDiffusionModel& model,
                                             const std::vector<int64_t>& prompt, int64_t gen_length,
                                             int64_t block_length, int64_t mask) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  const int64_t blocks = (length + gen_length + block_length - 1) / block_length;
  std::vector<int64_t> tokens = prompt;
  tokens.resize(static_cast<size_t>(blocks * block_length), mask);
  for (int64_t block = length / block_length; block < blocks; ++block) {
    const auto begin = tokens.begin() + block * block_length;
    for (int64_t step = 0; step < block_length; ++step) {
      if (std::count(begin, begin + block_length, mask) == 0) break;
      const std::vector<int64_t> visible(tokens.begin(), begin + block_length);
      const at::Tensor p = at::softmax(last_logits(model, visible, block_length, block_length), -1);
      int64_t best = -1;
      for (int64_t i = 0; i < block_length; ++i) {
        if (*(begin + i) != mask) continue;
        if (best < 0 || p[i].max().item<float>() > p[best].max().item<float>()) best = i;
      }
      *(begin + best) = p[best].argmax().item<int64_t>();
    }
  }
  return {tokens.begin() + length, tokens.end()};
}

}  // namespace blockscope::testing
