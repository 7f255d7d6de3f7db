// How keys, values, queries and hidden states of a position change around the step that decides its
// token (dKV-Cache, arXiv 2505.15781: they change most right after it; Elastic-Cache, arXiv
// 2510.14973). For a pair of adjacent recorded steps (t - 1, t) and a position that step d decided,
//   offset = t - d,  value = cos(X(t - 1), X(t)).
// Step d still sees the mask, so the position's own input changes at offset 1.
//
// Positions whose input is the same in both steps are also compared by kind. Elastic-Cache watches
// the most attended token: of those decided before step t - 1, the one with the largest weight in
// step t - 1, summed over the masks' queries and the heads.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays [layer, offset], offset from -8 to 8: drift_query, drift_key, drift_value, drift_hidden;
/// means over positions and heads. Positions that the block's steps did not decide are left out.
/// From level full on also drift_kind_key, drift_kind_value, drift_kind_hidden [layer, kind]: the
/// most attended token, the other decided ones, and the masks. Weights are those that the policy
/// gave.
std::unique_ptr<StepMetric> make_drift_metric();

}  // namespace blockscope
