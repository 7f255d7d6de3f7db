// Which masked positions of a block become tokens at a denoising step. Pure functions of one
// sequence's predictions, so every rule is tested without a model.
// Rules: SDAR `generate.py:block_diffusion_generate` (sequential, low_confidence_static,
// low_confidence_dynamic), dLLM-RL `scheduler.py:postprocess` (entropy_bounded), Fast-dLLM
// `llada/generate.py` (threshold, factor), d2Cache `generation/ar.py` (prefix_ordered). klass.h,
// pc_sampler.h and wino.h name their own sources. The official code may overwrite decided tokens;
// this code chooses only masked positions. docs/strategies.md has the formulas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "probe/choices/own_option.h"
#include "probe/strategies/klass.h"
#include "probe/strategies/pc_sampler.h"
#include "probe/strategies/quota.h"

namespace blockscope {

/// The score by which strategies rank positions: the token's probability, p1 - p2 of the two most
/// probable tokens, or sum p log(p + 1e-10) (Dream `generation_utils.py:sample_tokens`, alg
/// maskgit_plus, topk_margin, entropy).
enum class RankBy { kConfidence, kMargin, kNegativeEntropy };

inline const std::vector<std::string> kRankByWords{"confidence", "margin", "negative_entropy"};
inline const std::string& rank_by_name(RankBy rank_by) {
  return kRankByWords[static_cast<std::size_t>(rank_by)];
}

/// A strategy's name and the options of all strategies. A strategy reads only the options of its
/// entry (strategy_table.h).
struct UnmaskingOptions {
  std::string strategy = "low_confidence_static";
  RankBy rank_by = RankBy::kConfidence;
  Quota quota = Quota::kEven;
  int64_t block_length = 0;
  int64_t denoising_steps = 0;  // T: denoising steps that a block's masks are spread over
  double threshold = 0.85;      // of the score: dynamic, klass and wino take `>`, the others `>=`
  double eb_threshold = 0.35;   // nats of summed entropy
  double factor = 1.0;          // Fast-dLLM's f
  double density_sigma = 0.0;   // width of the certainty density, in positions; 0: off
  double kl_threshold = 0.01;   // nats; klass takes `<`
  int64_t kl_history = 2;       // klass: steps whose KL must be below
  KlassChoose klass_choose = KlassChoose::kAll;
  double threshold_back = 0.9;     // wino: a token with a lower probability is masked again
  double editing_threshold = 0.5;  // joint_threshold: an edit's confidence is above; 0: no edits
  int64_t max_post_steps = 16;     // joint_threshold: editing steps after a block's last mask
  double pc_lambda = 0.25;         // pc_sampler: decay per position
  double pc_alpha = 10.0;          // pc_sampler: largest debiased confidence
  double entropy_bound = 0.1;      // canvas: nats, without the largest of the accepted
  double t_max = 0.8;              // canvas: temperature of the first step
  double t_min = 0.4;              // canvas: temperature after the last one
  int64_t stable_steps = 1;        // canvas: steps with equal best tokens before it may end
  double stop_entropy = 0.005;     // canvas: mean nats below which it may end
  OwnValues own;                   // a plugin's options
  std::string frequencies_file;    // pc_sampler
  std::shared_ptr<const TokenFrequencies> frequencies;  // its content
};

/// Throws UsageError when a value makes no sense (steps > block length, a threshold that no score
/// or every score passes, an option out of its range).
void check_unmasking_options(const UnmaskingOptions& options);

/// The number of steps that a block may take: forecast_steps(), or StrategyEntry::step_limit.
int64_t most_steps(const UnmaskingOptions& options);

/// The steps of a long block: T; with the quota `carry`, T + B; with edits T + max_post_steps + 1.
/// Only a strategy with a step_limit may take more.
int64_t forecast_steps(const UnmaskingOptions& options);

/// The quota: tokens due at step `step` (from 0), with `masks` masks left and `chosen` positions
/// chosen before.
int64_t num_transfer_tokens(const UnmaskingOptions& options, int64_t step, int64_t masks,
                            int64_t chosen = 0);

/// One sequence's block at one step; all vectors have block_length entries.
struct BlockPrediction {
  std::vector<int64_t> token;     // sampled or argmax token; the [MASK] id takes part
  std::vector<float> confidence;  // softmax probability of `token`, before top-k/top-p
  std::vector<double> score;      // by RankBy, or klass's and wino's float64 confidence; empty: the
                                  // confidence is the score
  std::vector<double> kl;         // klass: KL from the position's last prediction, NaN at the first
  std::vector<double> moved;      // klass: the same, but at the first one from all probabilities 0
  std::vector<bool> stable;       // klass: the last KLs were all below the threshold
  std::vector<float> entropy;     // nats over the vocabulary; only if the strategy needs it
  std::vector<int64_t> top1;      // argmax token; equals `token` when greedy
  std::vector<float> top1_confidence;  // its softmax probability
};

/// The positions of the block to transfer, ascending: only masked ones, and at least one if any is
/// masked, unless the quota is 0. Ties go to the lower position. `density`: factors of the scores,
/// [B]; empty: none. `chosen`: the number of block positions that were known before its first step
/// or chosen since, also if the token was [MASK]; only the quota `carry` uses it. `unseen`: the
/// number of masks of the block that the pass does not predict, in addition to `masked`; the quota
/// `linear` counts them, like the released code.
std::vector<int64_t> select_transfers(const UnmaskingOptions& options, int64_t step,
                                      const BlockPrediction& prediction,
                                      const std::vector<bool>& masked,
                                      const std::vector<float>& density = {}, int64_t chosen = 0,
                                      int64_t unseen = 0);

}  // namespace blockscope
