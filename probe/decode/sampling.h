// From logits to predicted tokens and their confidence, greedy or sampled.
// Source: SDAR `huggingface_bd3.py:sample_with_temperature_topk_topp`: temperature first, the
// confidence is the softmax probability before top-k and top-p, then the token is drawn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/strategies/unmasking.h"

namespace blockscope {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy (argmax, ties to the lower id)
  int64_t top_k = 0;         // 0: off; 1: the greedy token; ties with the k-th stay in
  double top_p = 1.0;        // 1: off
  uint64_t seed = 0;
};

/// Throws UsageError for a negative temperature, top_k < 0, top_p outside (0, 1].
void check_sampling_options(const SamplingOptions& options);

/// Names one random stream: a draw depends on these and on the position, on nothing that ran
/// before, so a resumed run draws the same numbers.
struct StreamId {
  uint64_t prompt_hash = 0;
  int64_t block = 0;
  int64_t step = 0;
};

/// Uniform in [0, 1) of a stream at a position of the block (SplitMix64 over the identifiers).
double uniform_draw(uint64_t seed, const StreamId& stream, int64_t position);

/// What a strategy looks at beside the token and its probability.
struct PredictionNeeds {
  bool entropy = false;  // BlockPrediction::entropy, p clamped at 1e-12
  RankBy rank_by = RankBy::kConfidence;
  bool distributions = false;  // klass, wino: a float64 softmax; its probabilities are returned too
};
PredictionNeeds prediction_needs(const UnmaskingOptions& options);

/// Whether a prediction is the best token and its probability, and nothing else is asked for: then
/// every row stands for itself.
bool best_alone(const SamplingOptions& options, const PredictionNeeds& needs);

/// logits [R, V], row after row those of the positions in `predicted` ([B] per sequence) -> one
/// prediction per sequence; the other positions have token -1 and confidence NaN.
std::vector<BlockPrediction> best_predictions(const at::Tensor& logits,
                                              const std::vector<std::vector<bool>>& predicted);

/// logits [R, V] -> what `rank_by` says of each row's best token, [R] float32, where the logits
/// are: on a device nobody waits.
at::Tensor best_scores(const at::Tensor& logits, RankBy rank_by);

/// logits [S, B, V] of any floating dtype -> one prediction per sequence; `streams` has S entries.
/// On a device everything up to the tokens and their scores is done there, and one copy waits for
/// them. The softmax is float32, with needs.distributions float64: then the scores are the
/// confidences before they are rounded, and `distributions`, where it is given, becomes [S, B, V]
/// of them.
std::vector<BlockPrediction> predict_tokens(const at::Tensor& logits,
                                            const SamplingOptions& options,
                                            const std::vector<StreamId>& streams,
                                            const PredictionNeeds& needs = {},
                                            at::Tensor* distributions = nullptr);

}  // namespace blockscope
