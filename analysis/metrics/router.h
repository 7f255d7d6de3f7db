// How a mixture of experts distributes its rows, from /router/expert (--record-router). A row is
// one position of one denoising step. The router chooses k experts for each row.
//   usage      share of a layer's rows that chose an expert; the sum over the experts is k;
//   entropy    -sum p ln p of p = usage / k: how evenly a layer uses its experts; at most ln E;
//   agreement  |C(s) n C(s-1)| / k, mean over positions: share of the previous step's experts that
//              are chosen again.
// Layers without experts (all values -1) have no terms and do not count as left out.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays: usage [layer, expert], terms are rows; entropy [layer] in nats; agreement [layer, step],
/// terms are positions.
std::unique_ptr<StepMetric> make_router_metric();

}  // namespace blockscope
