// The statistics between two steps (step_statistics.h) in terms of torch operators, for devices
// without kernels. The tests compare them with the CPU's.
#pragma once

#include "kernels/step_statistics.h"

namespace blockscope::fallback {

LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape);
/// `first`: FirstRows::rows.
RowGaps row_gaps(const at::Tensor& x, int64_t row, const at::Tensor& first);

/// log(sum(exp(x))) of each row of x [R, V] -> [R] float64.
at::Tensor row_log_sum_exp(const at::Tensor& x);
/// KL(first || now) of rows [R, V] in nats -> [R] float32; first_lse [R] from row_log_sum_exp().
at::Tensor row_divergence(const at::Tensor& first, const at::Tensor& first_lse,
                          const at::Tensor& now);

}  // namespace blockscope::fallback
