// Which masked positions of a block become tokens at a denoising step. Pure functions of one
// sequence's predictions, so every rule is tested without a model.
// Rules: SDAR `generate.py:block_diffusion_generate` (sequential, low_confidence_static,
// low_confidence_dynamic), dLLM-RL `scheduler.py:postprocess` (entropy_bounded), Fast-dLLM
// `llada/generate.py` (threshold, factor), d2Cache `generation/ar.py` (prefix_ordered); klass.h and
// pc_sampler.h name theirs. Where the official code overwrites tokens that are
// already there, only masked positions are ever chosen here. docs/strategies.md has the formulas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "probe/strategies/klass.h"
#include "probe/strategies/pc_sampler.h"
#include "probe/strategies/quota.h"

namespace blockscope {

/// What the strategies that rank positions rank them by: the token's probability, p1 - p2 of the
/// two most probable tokens, or sum p log(p + 1e-10) (Dream `generation_utils.py:sample_tokens`,
/// alg maskgit_plus, topk_margin, entropy).
enum class RankBy { kConfidence, kMargin, kNegativeEntropy };

inline const std::vector<std::string> kRankByWords{"confidence", "margin", "negative_entropy"};
inline const std::string& rank_by_name(RankBy rank_by) {
  return kRankByWords[static_cast<std::size_t>(rank_by)];
}

/// A strategy's name and the options of all strategies; each heeds those of its entry
/// (strategy_table.h).
struct UnmaskingOptions {
  std::string strategy = "low_confidence_static";
  RankBy rank_by = RankBy::kConfidence;
  Quota quota = Quota::kEven;
  int64_t block_length = 0;
  int64_t denoising_steps = 0;  // T: at most this many denoising steps a block
  double threshold = 0.85;      // of the score: dynamic, klass and wino take `>`, the others `>=`
  double eb_threshold = 0.35;   // nats of summed entropy
  double factor = 1.0;          // Fast-dLLM's f
  double density_sigma = 0.0;   // positions; scores are times the certainty density; 0: off
  double kl_threshold = 0.01;   // nats; klass takes `<`
  int64_t kl_history = 2;       // klass: steps whose KL must be below
  KlassChoose klass_choose = KlassChoose::kAll;
  double threshold_back = 0.9;   // wino: of the second look at a token, below it is masked again
  double pc_lambda = 0.25;       // pc_sampler: decay per position
  double pc_alpha = 10.0;        // pc_sampler: largest debiased confidence
  std::string frequencies_file;  // pc_sampler
  std::shared_ptr<const TokenFrequencies> frequencies;  // what it holds
};

/// Throws UsageError when a value makes no sense (steps > block length, a threshold that no score
/// or every score passes, an option out of its range).
void check_unmasking_options(const UnmaskingOptions& options);

/// The steps a block may take: T; with the quota `carry` one for each position more.
int64_t most_steps(const UnmaskingOptions& options);

/// Tokens due at step `step` (from 0) with `masks` left and `chosen` positions chosen before, by
/// the quota.
int64_t num_transfer_tokens(const UnmaskingOptions& options, int64_t step, int64_t masks,
                            int64_t chosen = 0);

/// One sequence's block at one step; all vectors have block_length entries.
struct BlockPrediction {
  std::vector<int64_t> token;     // sampled or argmax token; the [MASK] id takes part
  std::vector<float> confidence;  // softmax probability of `token`, before top-k/top-p
  std::vector<double> score;      // by RankBy, or klass's and wino's float64 confidence; empty: the
                                  // confidence is the score
  std::vector<double> kl;         // klass: nats since its last prediction; NaN at the first
  std::vector<double> moved;      // klass: the same, but at the first from a step without any
  std::vector<bool> stable;       // klass: the last KLs were all below the threshold
  std::vector<float> entropy;     // nats over the vocabulary; only where the strategy wants it
  std::vector<int64_t> top1;      // argmax token; equals `token` when greedy
  std::vector<float> top1_confidence;  // its softmax probability
};

/// -> positions in the block to transfer, ascending; only masked ones, and at least one if any is,
/// but where the quota is due nothing. Ties go to the lower position. `density`: factors of the
/// scores, [B]; empty: none. `chosen`: positions of the block that were known before its first step
/// or chosen since, also where the token was [MASK]; only the quota `carry` heeds them. `unseen`:
/// masks of the block besides the `masked` ones, which the pass does not predict; the quota
/// `linear` counts them, as the released code does.
std::vector<int64_t> select_transfers(const UnmaskingOptions& options, int64_t step,
                                      const BlockPrediction& prediction,
                                      const std::vector<bool>& masked,
                                      const std::vector<float>& density = {}, int64_t chosen = 0,
                                      int64_t unseen = 0);

}  // namespace blockscope
