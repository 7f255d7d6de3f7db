// Adjacent-step cosine similarity: sim_X(l, h, s) = mean over valid positions i of cos(X_i^s,
// X_i^{s+1}), X = A_out, A_in (FlashBlock, arXiv 2602.05305, section 3, Fig. 5). Also for queries,
// hidden states, keys and values (KV similarity: Fast-dLLM, arXiv 2505.22618).
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// `similarity`: A_out and A_in per [layer, head, step], where step s means the pair (s, s + 1).
/// From the arrays of level outputs. Else, or with MetricOptions::from_summary, from /summary,
/// where a row has the mean over its positions compared with the previous step. Rows with N = 0
/// count only for A_in.
std::unique_ptr<StepMetric> make_similarity_metric(const MetricOptions& options);

/// `similarity_states`: query [layer, head, step]; key, value [layer, kv_head, step]; hidden
/// [layer, step].
std::unique_ptr<StepMetric> make_state_similarity_metric();

/// `token_matrix` [layer, position, next_position] of A_out and A_in (FlashBlock, Fig. 1): mean
/// over step pairs of the cosine between position i at a step and position j at the next step, with
/// heads concatenated. Cosines without a value (NaN, infinity, a vector of length 0) are left out.
std::unique_ptr<StepMetric> make_token_matrix_metric();

}  // namespace blockscope
