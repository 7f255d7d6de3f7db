// The one body of all tile kernels, written with GCC vector extensions and compiled once per
// instruction set (cmake/instruction_sets.cmake), with flags that set the vector width. It is a
// source file, so with tile_pack_impl.h it is longer than a header should be. Everything is in an
// unnamed namespace.
//
// Layouts: queries [group of kGroup rows][depth][kGroup]; keys [panel][depth][kPanel] (transposed);
// values [panel][kTileKeys][kPanel]. A panel is two vectors wide. With AVX512-BF16, bfloat16
// queries and keys are not converted, and a unit of depth is a pair of elements. vdpbf16ps
// multiplies exactly and adds in float32, at twice the rate of a float32 FMA, and treats subnormal
// inputs as 0. Weights stay float32 in all of these. tile_kernels_amx.cpp has its own products of
// bfloat16.
#pragma once

#include "kernels/simd/tile_kernels.h"
#include "kernels/simd/tile_pack_impl.h"

namespace blockscope {
namespace {

// --- matrix products

inline Vec multiply_add(float a, Vec b, Vec c) { return broadcast(a) * b + c; }

inline Vec multiply_add_pair(float a, Vec b, Vec c) {
#if defined(__AVX512BF16__)
  return add_pair_products(c, broadcast(a), b);
#else
  return multiply_add(a, b, c);
#endif
}

template <unsigned R, unsigned V, bool kPairs>
void score_block(const float* queries, const float* panel, int64_t depth, float* scores) {
  Vec sum[R][V] = {};
  for (int64_t d = 0; d < depth; ++d) {
    Vec key[V];
#pragma GCC unroll 2
    for (unsigned v = 0; v < V; ++v) key[v] = load(panel + d * kPanel + v * kLanes);
#pragma GCC unroll 12
    for (unsigned r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (unsigned v = 0; v < V; ++v) {
        const float q = queries[d * kGroup + r];
        sum[r][v] =
            kPairs ? multiply_add_pair(q, key[v], sum[r][v]) : multiply_add(q, key[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (unsigned r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (unsigned v = 0; v < V; ++v) store(scores + r * kTileKeys + v * kLanes, sum[r][v]);
  }
}

template <unsigned R, unsigned V>
void accumulate_block(const float* weights, const float* panel, const float* alpha,
                      int64_t num_keys, float* output, int64_t output_stride) {
  Vec sum[R][V];
#pragma GCC unroll 12
  for (unsigned r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (unsigned v = 0; v < V; ++v) {
      sum[r][v] = load(output + r * output_stride + v * kLanes) * broadcast(alpha[r]);
    }
  }
  for (int64_t j = 0; j < num_keys; ++j) {
    Vec value[V];
#pragma GCC unroll 2
    for (unsigned v = 0; v < V; ++v) value[v] = load(panel + j * kPanel + v * kLanes);
#pragma GCC unroll 12
    for (unsigned r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (unsigned v = 0; v < V; ++v) {
        sum[r][v] = multiply_add(weights[r * kTileKeys + j], value[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (unsigned r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (unsigned v = 0; v < V; ++v) store(output + r * output_stride + v * kLanes, sum[r][v]);
  }
}

// Calls f.operator()<R>(row) over num_rows rows in blocks of R = kGroup, then 4, 2, 1.
template <class F>
inline void for_row_blocks(int64_t num_rows, F f) {
  int64_t row = 0;
  for (; row + kGroup <= num_rows; row += kGroup) f.template operator()<kGroup>(row);
  if constexpr (kGroup == 12) {
    if (row + 8 <= num_rows) f.template operator()<8>(row), row += 8;
  }
  if (row + 4 <= num_rows) f.template operator()<4>(row), row += 4;
  if (row + 2 <= num_rows) f.template operator()<2>(row), row += 2;
  if (row < num_rows) f.template operator()<1>(row);
}

template <bool kPairs>
void scores_as(const float* queries, const float* packed_keys, int64_t num_rows, int64_t num_keys,
               int64_t depth, float* scores) {
  for (int64_t key = 0; key < num_keys; key += kPanel) {
    const float* panel = packed_keys + key * depth;
    for_row_blocks(num_rows, [&]<unsigned R>(int64_t row) {
      const float* q = queries + row / kGroup * kGroup * depth + row % kGroup;
      float* s = scores + row * kTileKeys + key;
      if (num_keys - key > kLanes) {
        score_block<R, 2, kPairs>(q, panel, depth, s);
      } else {
        score_block<R, 1, kPairs>(q, panel, depth, s);
      }
    });
  }
}

void scores(Element element, const float* queries, const float* packed_keys, int64_t num_rows,
            int64_t num_keys, int64_t dim, float* result) {
  const int64_t depth = depth_of(element, dim);
  if (uses_pairs(element)) {
    scores_as<true>(queries, packed_keys, num_rows, num_keys, depth, result);
  } else {
    scores_as<false>(queries, packed_keys, num_rows, num_keys, depth, result);
  }
}

void accumulate(Element, const float* weights, const float* packed_values, const float* alpha,
                int64_t num_rows, int64_t num_keys, int64_t dim, float* output) {
  const int64_t stride = padded(dim);
  for (int64_t d = 0; d < dim; d += kPanel) {
    const float* panel = packed_values + d * kTileKeys;
    for_row_blocks(num_rows, [&]<unsigned R>(int64_t row) {
      const float* w = weights + row * kTileKeys;
      float* o = output + row * stride + d;
      if (dim - d > kLanes) {
        accumulate_block<R, 2>(w, panel, alpha + row, num_keys, o, stride);
      } else {
        accumulate_block<R, 1>(w, panel, alpha + row, num_keys, o, stride);
      }
    });
  }
}

// --- softmax

template <size_t Step = 1>
inline float max_lane(Vec v) {
  if constexpr (Step < kLanes) {
    const Vec other = shuffle(v, v, [](size_t lane) { return lane ^ Step; });
    return max_lane<2 * Step>(larger(v, other));
  } else {
    return v[0];
  }
}

// One row of softmax, with its scores in registers. kWhole: a full tile with all keys visible.
// kSpread: row_energy and row_largest are updated too.
template <bool kWhole, bool kSpread>
inline void softmax_row(float* scores, int64_t num_keys, int64_t visible, float scale,
                        float& row_max, float* row_sum, float& alpha, float* row_energy,
                        float* row_largest) {
  constexpr int64_t kVectors = kTileKeys / kLanes;
  const int64_t vectors = kWhole ? kVectors : (num_keys + kLanes - 1) / kLanes;
  Vec x[kVectors]{};  // GCC does not see that both loops run over the same vectors
  Vec largest = broadcast(-kInfinity);
#pragma GCC unroll 16
  for (int64_t v = 0; v < vectors; ++v) {
    x[v] = load(scores + v * kLanes) * scale;
    if (!kWhole && (v + 1) * kLanes > visible) {
      const VecI hidden = lane_index() >= static_cast<int32_t>(visible - v * kLanes);
      x[v] = hidden ? broadcast(-kInfinity) : x[v];
    }
    largest = larger(x[v], largest);  // ignores a NaN, which exp then catches
  }
  const float before = row_max;
  const float after = any_above(largest, before + kMaxSlack) ? max_lane(largest) : before;
  // A row with only -inf so far keeps weight 0; without this, -inf - -inf would be NaN.
  const float origin = after == -kInfinity ? 0.0f : after;
  Vec sum{};
  Vec energy{};
#pragma GCC unroll 16
  for (int64_t v = 0; v < vectors; ++v) {
    const Vec distance = x[v] - origin;
    const Vec weight = exp_vec(distance);
    sum += weight;
    // The bound keeps 0 * -inf from becoming NaN. At the bound, the weight is 0.
    if (kSpread) energy += weight * larger(distance, broadcast(-kMostDistance));
    store(scores + v * kLanes, weight);
  }
  alpha = 1.0f;
  if (after != before) {
    alpha = exp_vec(broadcast(before - origin))[0];
    row_max = after;
    if (kSpread && before != -kInfinity) {
      // sum of w (x - after) = alpha * (sum of w (x - before) + (before - after) * sum of w)
      energy += (load(row_energy) + load(row_sum) * (before - after)) * alpha;
    }
  } else if (kSpread) {
    energy += load(row_energy);
  }
  if constexpr (kSpread) {
    store(row_energy, energy);
    store(row_largest, larger(largest, load(row_largest)));
  }
  store(row_sum, load(row_sum) * alpha + sum);
}

template <bool kSpread>
inline void softmax_rows(float* scores_of_rows, int64_t num_rows, int64_t num_keys, float scale,
                         const int64_t* visible, float* row_max, float* row_sum, float* alpha,
                         float* row_energy, float* row_largest) {
  for (int64_t r = 0; r < num_rows; ++r) {
    float* const s = scores_of_rows + r * kTileKeys;
    const int64_t limit = visible && visible[r] < num_keys ? visible[r] : num_keys;
    const auto row = [&]<bool kWhole>() {
      const int64_t lanes = r * kMaxLanes;
      softmax_row<kWhole, kSpread>(s, num_keys, limit, scale, row_max[r], row_sum + lanes, alpha[r],
                                   row_energy + lanes, row_largest + lanes);
    };
    limit == kTileKeys ? row.template operator()<true>() : row.template operator()<false>();
  }
}

void softmax(float* scores_of_rows, int64_t num_rows, int64_t num_keys, float scale,
             const int64_t* visible, float* row_max, float* row_sum, float* alpha,
             float* row_energy, float* row_largest) {
  if (row_energy == nullptr) {
    // row_sum stands for the arrays that aren't read.
    softmax_rows<false>(scores_of_rows, num_rows, num_keys, scale, visible, row_max, row_sum, alpha,
                        row_sum, row_sum);
  } else {
    softmax_rows<true>(scores_of_rows, num_rows, num_keys, scale, visible, row_max, row_sum, alpha,
                       row_energy, row_largest);
  }
}

template <size_t Step = 1>
inline float sum_lanes(Vec v) {
  if constexpr (Step < kLanes) {
    return sum_lanes<2 * Step>(v + shuffle(v, v, [](size_t lane) { return lane ^ Step; }));
  } else {
    return v[0];
  }
}

void reduce_lanes(const float* energy, const float* largest, int64_t num_rows, float* sums,
                  float* maxima) {
  for (int64_t r = 0; r < num_rows; ++r) {
    sums[r] = sum_lanes(load(energy + r * kMaxLanes));
    maxima[r] = max_lane(load(largest + r * kMaxLanes));
  }
}

void sum_of_rows(const float* rows, const float* factors, int64_t num_rows, int64_t stride,
                 int64_t width, float* sums) {
  // Four rows at a time, because one chain of additions would wait for each.
  constexpr int64_t kAtOnce = 4;
  for (int64_t j = 0; j < width; j += kLanes) {
    Vec sum[kAtOnce] = {};
    int64_t r = 0;
    for (; r + kAtOnce <= num_rows; r += kAtOnce) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kAtOnce; ++i) {
        sum[i] += load(rows + (r + i) * stride + j) * factors[r + i];
      }
    }
    for (; r < num_rows; ++r) sum[0] += load(rows + r * stride + j) * factors[r];
    store(sums + j, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
}

void probabilities(const float* scores_of_rows, const float* lse, int64_t num_rows,
                   int64_t num_keys, float scale, float* sums) {
  for (int64_t j = 0; j < num_keys; j += kLanes) {
    Vec sum{};
    for (int64_t r = 0; r < num_rows; ++r) {
      sum += exp_vec(load(scores_of_rows + r * kTileKeys + j) * scale - lse[r]);
    }
    store(sums + j, sum);
  }
}

void token_probabilities(const float* scores_of_rows, const float* lse, int64_t num_tokens,
                         int64_t group, int64_t num_keys, float scale, int64_t stride, float* means,
                         float* totals) {
  for (int64_t j = 0; j < num_keys; j += kLanes) {
    Vec total{};
    int64_t row = 0;
    for (int64_t t = 0; t < num_tokens; ++t) {
      Vec sum{};
      for (int64_t end = row + group; row < end; ++row) {
        const Vec p = exp_vec(load(scores_of_rows + row * kTileKeys + j) * scale - lse[row]);
        sum += p;
        total += p;
      }
      store(means + t * stride + j, sum / static_cast<float>(group));
    }
    store(totals + j, load(totals + j) + total);
  }
}

void row_factors(const float* max, const float* lse, int64_t num_rows, float* factors) {
  int64_t r = 0;
  for (; r + kLanes <= num_rows; r += kLanes) {
    store(factors + r, exp_vec(load(max + r) - load(lse + r)));
  }
  for (; r < num_rows; ++r) factors[r] = exp_vec(broadcast(max[r] - lse[r]))[0];
}

void token_weights(const float* weights, const float* factors, int64_t num_tokens,
                   int64_t row_stride, int64_t group, int64_t num_keys, int64_t stride,
                   float* means, float* totals) {
  // Row after row, four vectors of each at a time, because the rows are not in the nearest cache.
  constexpr int64_t kAtOnce = 4;
  for (int64_t begin = 0; begin < num_keys; begin += kAtOnce * kLanes) {
    Vec total[kAtOnce] = {};
    for (int64_t t = 0; t < num_tokens; ++t) {
      Vec sum[kAtOnce] = {};
      for (int64_t g = 0; g < group; ++g) {
        const int64_t row = g * row_stride + t;
        const Vec factor = broadcast(factors[row]);
#pragma GCC unroll 4
        for (int64_t v = 0; v < kAtOnce; ++v) {
          const int64_t j = begin + v * kLanes;
          if (j < num_keys) sum[v] += load(weights + row * kTileKeys + j) * factor;
        }
      }
#pragma GCC unroll 4
      for (int64_t v = 0; v < kAtOnce; ++v) {
        const int64_t j = begin + v * kLanes;
        if (j >= num_keys) continue;
        total[v] += sum[v];
        store(means + t * stride + j, sum[v] / static_cast<float>(group));
      }
    }
#pragma GCC unroll 4
    for (int64_t v = 0; v < kAtOnce; ++v) {
      const int64_t j = begin + v * kLanes;
      if (j < num_keys) store(totals + j, load(totals + j) + total[v]);
    }
  }
}

// --- selection

int64_t pass_not_below(const float* p, int64_t count, float bound, int32_t first, int32_t* ranks,
                       int32_t* places) {
  int64_t found = 0;
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512 least = _mm512_set1_ps(bound);
  const __m512i rank_offset = _mm512_set1_epi32(kNaNRank + 1);
  __m512i place = bits<__m512i>(lane_index() + first);
  for (; i + kLanes <= count; i += kLanes) {
    const __m512 v = load(p + i);
    const __mmask16 kept = _mm512_cmp_ps_mask(v, least, _CMP_NLT_UQ);
    if (kept != 0) {
      const __mmask16 number = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GE_OQ);
      const __m512i size = _mm512_and_si512(bits<__m512i>(v), _mm512_set1_epi32(0x7fffffff));
      const __m512i rank =
          _mm512_mask_add_epi32(_mm512_set1_epi32(kNaNRank), number, size, rank_offset);
      _mm512_storeu_si512(ranks + found, _mm512_maskz_compress_epi32(kept, rank));
      _mm512_storeu_si512(places + found, _mm512_maskz_compress_epi32(kept, place));
      found += __builtin_popcount(kept);
    }
    place = _mm512_add_epi32(place, _mm512_set1_epi32(kLanes));
  }
#endif
  for (; i < count; ++i) {  // no branch, because the passing ones can't be predicted
    ranks[found] = rank_of(p[i]);
    places[found] = first + static_cast<int32_t>(i);
    found += p[i] < bound ? 0 : 1;
  }
  return found;
}

int64_t count_reaching(const int32_t* x, int64_t count, int32_t bound) {
  int64_t found = 0;
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i least = _mm512_set1_epi32(bound);
  for (; i + kLanes <= count; i += kLanes) {
    found += __builtin_popcount(_mm512_cmpge_epi32_mask(_mm512_loadu_si512(x + i), least));
  }
#else
  VecI reached{};  // -1 for each
  for (; i + kLanes <= count; i += kLanes) {
    VecI v;
    std::memcpy(&v, x + i, sizeof v);
    reached += v >= bound;
  }
  for (int lane = 0; lane < kLanes; ++lane) found -= reached[lane];
#endif
  for (; i < count; ++i) found += x[i] >= bound ? 1 : 0;
  return found;
}

// Bisects the range between the smallest and the largest until the wanted number reaches the
// middle.
int32_t splitting_bound(const int32_t* x, int64_t count, int64_t k) {
  int32_t low = x[0];
  int32_t high = x[0];
  for (int64_t i = 1; i < count; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  int64_t reach_low = count;
  while (reach_low > k && low < high) {
    // Above low and at most high; no sum overflows.
    const auto middle = static_cast<int32_t>(
        low + (static_cast<int64_t>(high) - static_cast<int64_t>(low) + 1) / 2);
    const int64_t reach = count_reaching(x, count, middle);
    if (reach >= k) {
      low = middle;
      reach_low = reach;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

int64_t keep_reaching(int32_t* ranks, int32_t* places, int64_t count, int32_t bound) {
  int64_t kept = 0;
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i least = _mm512_set1_epi32(bound);
  for (; i + kLanes <= count; i += kLanes) {
    const __m512i rank = _mm512_loadu_si512(ranks + i);
    const __m512i place = _mm512_loadu_si512(places + i);
    const __mmask16 reached = _mm512_cmpge_epi32_mask(rank, least);
    // kept <= i, so it never overwrites an unread element.
    _mm512_storeu_si512(ranks + kept, _mm512_maskz_compress_epi32(reached, rank));
    _mm512_storeu_si512(places + kept, _mm512_maskz_compress_epi32(reached, place));
    kept += __builtin_popcount(reached);
  }
#endif
  for (; i < count; ++i) {
    const int32_t rank = ranks[i];
    ranks[kept] = rank;
    places[kept] = places[i];
    kept += rank >= bound ? 1 : 0;
  }
  return kept;
}

void keep_larger(const float* p, int64_t count, float* largest) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec v = load(p + i);
    const Vec before = load(largest + i);
    store(largest + i, v > before ? v : before);
  }
  for (; i < count; ++i) largest[i] = p[i] > largest[i] ? p[i] : largest[i];
}

constexpr TileKernels make_tile_kernels(const char* name) {
  return {name,
          12,
          pack_query,
          pack_keys,
          pack_values,
          scores,
          softmax,
          accumulate,
          probabilities,
          token_probabilities,
          row_factors,
          sum_of_rows,
          reduce_lanes,
          token_weights,
          pass_not_below,
          keep_larger,
          splitting_bound,
          keep_reaching};
}

}  // namespace
}  // namespace blockscope
