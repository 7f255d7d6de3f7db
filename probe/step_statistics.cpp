#include "probe/step_statistics.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops.h"

namespace blockscope {
namespace {

std::vector<float> to_vector(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kFloat).contiguous();
  const float* data = flat.const_data_ptr<float>();
  return {data, data + flat.numel()};
}

/// Weight of the external side in a merge of two log-sum-exps, exact when one side is empty.
float external_weight(float lse_external, float lse_internal) {
  if (lse_external == -std::numeric_limits<float>::infinity()) return 0.0F;
  return 1.0F / (1.0F + std::exp(lse_internal - lse_external));
}

ErrorSums row_error(const float* source, float source_weight, const float* external,
                    float external_weight_now, const float* internal, int64_t channels) {
  float squared = 0.0F;
  float absolute = 0.0F;
  float reference = 0.0F;
  float dot = 0.0F;
  for (int64_t d = 0; d < channels; ++d) {
    const float ref = internal[d] + external_weight_now * (external[d] - internal[d]);
    const float got = internal[d] + source_weight * (source[d] - internal[d]);
    const float error = got - ref;
    squared += error * error;
    absolute += std::fabs(error);
    reference += ref * ref;
    dot += ref * got;
  }
  return {static_cast<double>(squared), static_cast<double>(absolute),
          static_cast<double>(reference), static_cast<double>(dot)};
}

}  // namespace

std::vector<float> mean_similarity(const at::Tensor& a, const at::Tensor& b) {
  return to_vector(cross_step_similarity(a, b).mean(-1));
}

std::vector<float> mean_external_mass(const at::Tensor& lse_external,
                                      const at::Tensor& lse_internal) {
  // sigmoid(L_out - L_in) is the mass, and 0 for L_out = -inf.
  return to_vector(at::sigmoid(lse_external - lse_internal).mean(-1));
}

std::vector<ErrorSums> reuse_error(const HeadAttention& source, const HeadAttention& external,
                                   const HeadAttention& internal) {
  const int64_t heads = external.output.size(0);
  const int64_t block = external.output.size(1);
  const int64_t channels = external.output.size(2);
  const float* source_output = source.output.const_data_ptr<float>();
  const float* source_lse = source.lse.const_data_ptr<float>();
  const float* external_output = external.output.const_data_ptr<float>();
  const float* external_lse = external.lse.const_data_ptr<float>();
  const float* internal_output = internal.output.const_data_ptr<float>();
  const float* internal_lse = internal.lse.const_data_ptr<float>();
  std::vector<ErrorSums> sums(static_cast<size_t>(heads));
  at::parallel_for(0, heads, 4, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      ErrorSums& total = sums[static_cast<size_t>(head)];
      for (int64_t row = head * block; row < (head + 1) * block; ++row) {
        const int64_t at = row * channels;
        const ErrorSums part =
            row_error(source_output + at, external_weight(source_lse[row], internal_lse[row]),
                      external_output + at, external_weight(external_lse[row], internal_lse[row]),
                      internal_output + at, channels);
        total.squared += part.squared;
        total.absolute += part.absolute;
        total.reference += part.reference;
        total.dot += part.dot;
      }
    }
  });
  return sums;
}

at::Tensor unit_normalised(const at::Tensor& x) {
  const at::Tensor x32 = x.to(at::kFloat);
  // The floor only keeps a zero vector zero; real norms are far above it.
  return x32 / x32.norm(2, -1, true).clamp_min(1e-30);
}

std::vector<float> mean_gap(const at::Tensor& a, const at::Tensor& b) {
  return to_vector((a - b).norm(2, -1).mean(-1));
}

std::vector<float> block_average_gap(const at::Tensor& a, const at::Tensor& b) {
  return to_vector((a - b).mean(-2).norm(2, -1));
}

std::vector<float> masked_kl(const at::Tensor& log_p_first, const at::Tensor& log_p_now,
                             const std::vector<bool>& masked) {
  std::vector<float> kl = to_vector((log_p_first.exp() * (log_p_first - log_p_now)).sum(-1));
  for (size_t i = 0; i < kl.size(); ++i) {
    if (!masked[i]) kl[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return kl;
}

}  // namespace blockscope
