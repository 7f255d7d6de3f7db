// Which masked positions of a block become tokens at a denoising step. Pure functions of one
// sequence's predictions, so every rule is tested without a model.
// Rules: SDAR `generate.py:block_diffusion_generate` (sequential, low_confidence_static,
// low_confidence_dynamic), dLLM-RL `scheduler.py:postprocess` (entropy_bounded), Fast-dLLM
// `llada/generate.py` (threshold, factor). Where the official code overwrites tokens that are
// already there, only masked positions are ever chosen here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

enum class Strategy {
  kSequential,
  kLowConfidenceStatic,
  kLowConfidenceDynamic,
  kEntropyBounded,
  kThreshold,
  kFactor,
};

/// Throws UsageError for an unknown name, listing the known ones.
Strategy parse_strategy(const std::string& name);
std::string strategy_name(Strategy strategy);

struct UnmaskingOptions {
  Strategy strategy = Strategy::kLowConfidenceStatic;
  int64_t block_length = 0;
  int64_t denoising_steps = 0;  // T: at most this many denoising steps a block
  double threshold = 0.85;      // confidence: dynamic takes `>`, threshold `>=`
  double eb_threshold = 0.35;   // nats of summed entropy
  double factor = 1.0;          // Fast-dLLM's f
};

/// Throws UsageError when a value makes no sense (steps > block length, threshold outside [0, 1]).
void check_unmasking_options(const UnmaskingOptions& options);

/// Tokens due at step `step` (from 0): block_length // T, plus 1 for the first block_length % T.
int64_t num_transfer_tokens(const UnmaskingOptions& options, int64_t step);

/// One sequence's block at one step; all vectors have block_length entries.
struct BlockPrediction {
  std::vector<int64_t> token;          // sampled or argmax token; the [MASK] id takes part
  std::vector<float> confidence;       // softmax probability of `token`, before top-k/top-p
  std::vector<float> entropy;          // nats over the vocabulary; only for kEntropyBounded
  std::vector<int64_t> top1;           // argmax token; equals `token` when greedy
  std::vector<float> top1_confidence;  // its softmax probability
};

/// -> positions in the block to transfer, ascending; only masked ones, at least one if any is.
/// Ties go to the lower position.
std::vector<int64_t> select_transfers(const UnmaskingOptions& options, int64_t step,
                                      const BlockPrediction& prediction,
                                      const std::vector<bool>& masked);

}  // namespace blockscope
