// The inner loops of the CPU operators on tiles of kTileKeys keys, compiled once per instruction
// set from tile_kernels_impl.h and chosen at run time. No torch header: files for one instruction
// set must not instantiate inline functions that the linker could then use on older machines.
//
// A tile step of attention over R query rows is: pack_keys, scores, softmax, pack_values,
// accumulate. All rows (the G query heads of a KV head times the query tokens) share the packed
// keys and values, so each key is read once. The arithmetic of a row never depends on other rows.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace blockscope {

constexpr int64_t kTileKeys = 64;
constexpr int64_t kMaxLanes = 16;  // widest vector, in floats; every buffer is padded to it

// How far a score may exceed its row's row_max. Weights up to e^8 lose nothing in float32.
constexpr float kMaxSlack = 8.0f;

// Scores this far below row_max have weight 0 in float32.
constexpr float kMostDistance = 120.0f;

// Ranks order probabilities (>= 0 or NaN) and are positive. NaN has the lowest rank.
constexpr int32_t kNaNRank = 1;
inline int32_t rank_of(float probability) {
  if (!(probability >= 0.0f)) return kNaNRank;
  int32_t bits = 0;
  __builtin_memcpy(&bits, &probability, sizeof bits);
  return (bits & 0x7fffffff) + kNaNRank + 1;
}

struct TileKernels {
  const char* name;
  int64_t slice_rows;  // number of rows that accumulate should get at once, if there are more

  // Stores query row `row` of `dim` elements into `packed` (see packed_query_floats).
  void (*pack_query)(Element element, const void* query, int64_t dim, int64_t row, float* packed);

  // Packs num_keys <= kTileKeys rows of `dim` elements, `stride` bytes apart, into `packed`
  // (packed_tile_floats). Nothing after row num_keys - 1 or element dim - 1 is read.
  void (*pack_keys)(Element element, const void* keys, int64_t stride, int64_t num_keys,
                    int64_t dim, float* packed);
  void (*pack_values)(Element element, const void* values, int64_t stride, int64_t num_keys,
                      int64_t dim, float* packed);

  // scores[r][j] = query r . key j, row stride kTileKeys. `element` as given to the pack functions.
  void (*scores)(Element element, const float* queries, const float* packed_keys, int64_t num_rows,
                 int64_t num_keys, int64_t dim, float* scores);

  // Online softmax. Scores become exp(score * scale - new row_max). row_max and row_sum
  // [R][kMaxLanes] (partial sums per lane) are updated. alpha[r] = exp(old max - new max). A
  // row_max changes only if a score exceeds it by more than kMaxSlack, which is rare after a few
  // tiles. `visible` (or null): row r sees only the first visible[r] keys of the tile (may be <=
  // 0). row_energy and row_largest (both or none) [R][kMaxLanes], from 0 and -inf: per lane, the
  // sum of weight * (score * scale - row_max), and the largest score * scale. The other results do
  // not depend on them.
  void (*softmax)(float* scores, int64_t num_rows, int64_t num_keys, float scale,
                  const int64_t* visible, float* row_max, float* row_sum, float* alpha,
                  float* row_energy, float* row_largest);

  // output[r] = alpha[r] * output[r] + sum_j weights[r][j] * value j; row stride padded(dim).
  void (*accumulate)(Element element, const float* weights, const float* packed_values,
                     const float* alpha, int64_t num_rows, int64_t num_keys, int64_t dim,
                     float* output);

  // sums[j] = sum over rows of exp(scores[r][j] * scale - lse[r]), j < kTileKeys.
  void (*probabilities)(const float* scores, const float* lse, int64_t num_rows, int64_t num_keys,
                        float scale, float* sums);

  // The same for tokens of `group` neighbouring rows each. means[t * stride + j] = the sum over the
  // rows of token t, divided by `group`. totals[j] += the sum over all rows. Both are written up to
  // num_keys, rounded up to a multiple of kMaxLanes.
  void (*token_probabilities)(const float* scores, const float* lse, int64_t num_tokens,
                              int64_t group, int64_t num_keys, float scale, int64_t stride,
                              float* means, float* totals);

  // factors[r] = exp(max[r] - lse[r]), r < num_rows.
  void (*row_factors)(const float* max, const float* lse, int64_t num_rows, float* factors);

  // sums[j] = the sum over r < num_rows of rows[r * stride + j] * factors[r], j < width. width is
  // a multiple of kMaxLanes.
  void (*sum_of_rows)(const float* rows, const float* factors, int64_t num_rows, int64_t stride,
                      int64_t width, float* sums);

  // sums[r] = the sum, and maxima[r] = the largest, of the lanes of row_energy and row_largest.
  void (*reduce_lanes)(const float* row_energy, const float* row_largest, int64_t num_rows,
                       float* sums, float* maxima);

  // token_probabilities from weights[r][j] * factors[r], with row r = g * row_stride + t of token
  // t.
  void (*token_weights)(const float* weights, const float* factors, int64_t num_tokens,
                        int64_t row_stride, int64_t group, int64_t num_keys, int64_t stride,
                        float* means, float* totals);

  // Writes those of p[0 .. count) that are not below `bound` (NaN is not below), by rising place:
  // as rank_of and as place + first. Returns their number. Both are written up to count +
  // kMaxLanes.
  int64_t (*pass_not_below)(const float* p, int64_t count, float bound, int32_t first,
                            int32_t* ranks, int32_t* places);

  // largest[i] = the larger of largest[i] and p[i]; a NaN loses.
  void (*keep_larger)(const float* p, int64_t count, float* largest);

  // A bound that at least k >= 1 of x[0 .. count) reach and fewer than k exceed, or that exactly k
  // reach. count >= k.
  int32_t (*splitting_bound)(const int32_t* x, int64_t count, int64_t k);

  // Moves the ranks that reach `bound`, and their places, to the front in the same order. Returns
  // their number.
  int64_t (*keep_reaching)(int32_t* ranks, int32_t* places, int64_t count, int32_t bound);
};

// Floats per output row.
constexpr int64_t padded(int64_t dim) { return (dim + kMaxLanes - 1) / kMaxLanes * kMaxLanes; }

// Floats of a packed tile of keys or values. The last panel of two vectors may be half empty.
constexpr int64_t packed_tile_floats(int64_t dim) { return kTileKeys * (padded(dim) + kMaxLanes); }

// Floats of num_rows packed queries. Rows may be interleaved in groups of 12.
constexpr int64_t packed_query_floats(int64_t num_rows, int64_t dim) {
  return (num_rows + 11) / 12 * 12 * padded(dim);
}

// The variants that this machine can run, best first. "baseline" is always the last.
const TileKernels* const* available_tile_kernels(int64_t* count);

inline const TileKernels& best_tile_kernels() {
  int64_t count = 0;
  return *available_tile_kernels(&count)[0];
}

// One per instruction set. Only tile_kernels.cpp uses them.
extern const TileKernels kTileKernelsBaseline;
extern const TileKernels kTileKernelsAvx2;
extern const TileKernels kTileKernelsAvx512;
extern const TileKernels kTileKernelsAvx512Bf16;
extern const TileKernels kTileKernelsAmx;

}  // namespace blockscope
