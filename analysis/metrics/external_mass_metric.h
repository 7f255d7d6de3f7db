// External mass: exp(L_out) / (exp(L_in) + exp(L_out)), the share of a query's attention that goes
// to the prefix (the weight of A_out in FlashBlock, arXiv 2602.05305, eq. 5).
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// External mass of one query. L_out = -inf (no visible external key) gives 0. Any other value that
/// is not finite gives NaN.
double external_mass_of(float lse_external, float lse_internal);

/// `external_mass` [layer, head, step]: mean over valid positions, from exact values. Rows with N =
/// 0 have no external mass, so they are left out and counted. Reads the LSEs (level summary and
/// above), or /summary/external_mass with MetricOptions::from_summary.
std::unique_ptr<StepMetric> make_external_mass_metric(const MetricOptions& options);

}  // namespace blockscope
