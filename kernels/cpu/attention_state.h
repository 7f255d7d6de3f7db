// Merges attention states over disjoint key sets, on plain rows. merge_attention, the chunks of a
// long prefix, and the `out` of split and reuse attention all use this one implementation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace blockscope {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// One side of a merge. The attention output is output / sum, and `sum` is relative to exp(max). A
// finished (output, lse) pair has sum 1 and max = lse.
struct AttentionPart {
  const float* output = nullptr;
  float max = kNegativeInfinity;
  float sum = 1.0f;
};

// Writes the merged output [dim] and returns its lse. Parts with max -inf hold no key and are
// skipped. If only one finished part is left, the result is that part, bit for bit. The largest
// maximum is subtracted before exp, so an lse of +-1e4 neither overflows nor vanishes.
inline float merge_parts(const AttentionPart* parts, int64_t num_parts, int64_t dim, float* out) {
  float largest = kNegativeInfinity;
  int64_t live = 0;
  int64_t only = 0;
  for (int64_t i = 0; i < num_parts; ++i) {
    if (parts[i].max == kNegativeInfinity) continue;
    largest = std::isnan(parts[i].max) || parts[i].max > largest ? parts[i].max : largest;
    only = i;
    ++live;
  }
  if (live == 0) {
    std::fill_n(out, dim, 0.0f);
    return kNegativeInfinity;
  }
  if (live == 1 && parts[only].sum == 1.0f) {
    std::copy_n(parts[only].output, dim, out);
    return parts[only].max;
  }
  float total = 0.0f;
  std::fill_n(out, dim, 0.0f);
  for (int64_t i = 0; i < num_parts; ++i) {
    if (parts[i].max == kNegativeInfinity) continue;
    const float weight = std::exp(parts[i].max - largest);
    total += weight * parts[i].sum;
    for (int64_t d = 0; d < dim; ++d) out[d] += weight * parts[i].output[d];
  }
  for (int64_t d = 0; d < dim; ++d) out[d] /= total;
  return largest + std::log(total);
}

}  // namespace blockscope
