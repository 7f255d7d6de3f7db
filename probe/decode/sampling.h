// From logits to predicted tokens and their confidence, greedy or sampled.
// Source: SDAR `huggingface_bd3.py:sample_with_temperature_topk_topp`. Temperature comes first. The
// confidence is the softmax probability before top-k and top-p. Then the token is drawn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/strategies/unmasking.h"

namespace blockscope {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy (argmax, ties to the lower id)
  int64_t top_k = 0;         // 0: off; 1: the greedy token; ties with the k-th are kept
  double top_p = 1.0;        // 1: off
  uint64_t seed = 0;
};

/// Throws UsageError for a negative temperature, top_k < 0, top_p outside (0, 1].
void check_sampling_options(const SamplingOptions& options);

/// Identifies one random stream. A draw depends only on these numbers, the seed and the position,
/// so a resumed run draws the same numbers.
struct StreamId {
  uint64_t prompt_hash = 0;
  int64_t block = 0;
  int64_t step = 0;
};

/// Uniform in [0, 1) of a stream at a position of the block (SplitMix64 over the identifiers).
double uniform_draw(uint64_t seed, const StreamId& stream, int64_t position);

/// What a strategy needs in addition to the token and its probability.
struct PredictionNeeds {
  bool entropy = false;  // BlockPrediction::entropy, p clamped at 1e-12
  RankBy rank_by = RankBy::kConfidence;
  bool distributions = false;  // klass, wino: a float64 softmax, whose probabilities are returned
};
PredictionNeeds prediction_needs(const UnmaskingOptions& options);

/// Whether only the best token and its probability are needed. Then every row can be predicted
/// alone.
bool best_alone(const SamplingOptions& options, const PredictionNeeds& needs);

/// logits [R, V], row after row those of the positions in `predicted` ([B] per sequence) -> one
/// prediction per sequence; the other positions have token -1 and confidence NaN.
std::vector<BlockPrediction> best_predictions(const at::Tensor& logits,
                                              const std::vector<std::vector<bool>>& predicted);

/// logits [R, V] -> the score of each row's best token by `rank_by`, [R] float32, on the logits'
/// device. The host does not wait.
at::Tensor best_scores(const at::Tensor& logits, RankBy rank_by);

/// logits [S, B, V] of any floating dtype -> one prediction per sequence; `streams` has S entries.
/// Logits on a device are processed on it, up to tokens and scores; one copy waits for them. The
/// softmax is float32. With needs.distributions it is float64, scores are the unrounded
/// confidences, and `distributions`, if given, becomes its probabilities [S, B, V].
std::vector<BlockPrediction> predict_tokens(const at::Tensor& logits,
                                            const SamplingOptions& options,
                                            const std::vector<StreamId>& streams,
                                            const PredictionNeeds& needs = {},
                                            at::Tensor* distributions = nullptr);

}  // namespace blockscope
