// External mass: exp(L_out) / (exp(L_in) + exp(L_out)), the share of a query's attention that goes
// to the prefix (the weight of A_out in FlashBlock, arXiv 2602.05305, eq. 5).
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Of one query. L_out = -inf where there are keys would mean that none can be seen: mass 0. NaN
/// otherwise where a value is not finite.
double external_mass_of(float lse_external, float lse_internal);

/// `external_mass` [layer, head, step], mean over valid positions, of exact values. Rows with N = 0
/// have no mass to speak of and are counted apart. From the LSEs (level summary and above), or from
/// /summary/external_mass when options ask for it.
std::unique_ptr<StepMetric> make_external_mass_metric(const MetricOptions& options);

}  // namespace blockscope
