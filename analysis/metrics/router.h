// How a mixture of experts spreads its rows, from what --record-router kept (/router/expert). A row
// is one position of one denoising step; k experts are chosen for each.
//   usage      share of a layer's rows that chose an expert; k in sum over the experts;
//   entropy    -sum p ln p of p = usage / k: how evenly a layer uses its experts, ln E at most;
//   agreement  |C(s) n C(s-1)| / k, mean over positions: how many of the experts chosen at the step
//              before are chosen again.
// Layers without experts (-1 throughout) have no terms and are not counted as left out.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays: usage [layer, expert], terms are rows; entropy [layer] in nats; agreement [layer, step],
/// terms are positions.
std::unique_ptr<StepMetric> make_router_metric();

}  // namespace blockscope
