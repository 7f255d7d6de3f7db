// Tile kernels for AMX: products of bfloat16 in tiles, everything else as with AVX512-BF16.
// CMakeLists.txt has the flags. On a CPU without AMX, tests run them in an emulation
// (tests/kernels/amx_emulation.h).
//
// Layouts of bfloat16, in steps of two elements (amx_tiles_impl.h): queries [row][steps]; keys
// [panel of 32 keys][steps][32], with the depth padded with zeros to whole blocks; values [panel of
// 32 channels][two keys][32], with the keys padded with zeros to 32 or 64. A float32 weight becomes
// the sum of two bfloat16 numbers, with an error of at most 2^-17 of it. Values are therefore
// multiplied twice.
#include "kernels/simd/amx_tiles_impl.h"
#include "kernels/simd/tile_kernels_impl.h"

namespace blockscope {
namespace {

constexpr int64_t kBlockKeys = 2 * kBlockSteps;
constexpr int64_t kKeyBytes = 2 * kTileKeys;  // of a row of weights in bfloat16
constexpr int64_t kPanelValueBytes = kTileKeys / 2 * kStepBytes;
static_assert(kPanel == 2 * kTileColumns && kStepBytes == kPanel * 4);

int64_t tile_steps(int64_t dim) {
  const int64_t steps = (dim + 1) / 2;
  return (steps + kBlockSteps - 1) / kBlockSteps * kBlockSteps;
}

// --- packing

void pack_query_in_tiles(Element element, const void* query, int64_t dim, int64_t row,
                         float* packed) {
  if (element != Element::kBFloat16) return pack_query(element, query, dim, row, packed);
  const auto bytes = static_cast<size_t>(dim * 2);
  const auto all = static_cast<size_t>(tile_steps(dim) * 4);
  char* target = reinterpret_cast<char*>(packed + row * tile_steps(dim));
  std::memcpy(target, query, bytes);
  std::memset(target + bytes, 0, all - bytes);
}

void pack_keys_in_tiles(Element element, const void* keys, int64_t stride, int64_t num_keys,
                        int64_t dim, float* packed) {
  if (element != Element::kBFloat16) {
    return pack_keys(element, keys, stride, num_keys, dim, packed);
  }
  pack_keys_as<LoadPair>(static_cast<const char*>(keys), stride, num_keys, dim * 2, tile_steps(dim),
                         packed);
}

// Stores 32 channels of two keys as pairs.
inline void store_pairs(char* target, __m512i first, __m512i second) {
  // The lower and the upper half of every four lanes of four channels.
  const __m512i low = _mm512_unpacklo_epi16(first, second);
  const __m512i high = _mm512_unpackhi_epi16(first, second);
  const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_si512(target, _mm512_permutex2var_epi64(low, left, high));
  _mm512_storeu_si512(target + kRowBytes, _mm512_permutex2var_epi64(low, right, high));
}

void pack_values_in_tiles(Element element, const void* values, int64_t stride, int64_t num_keys,
                          int64_t dim, float* packed) {
  if (element != Element::kBFloat16) {
    return pack_values(element, values, stride, num_keys, dim, packed);
  }
  const int64_t end = (num_keys + kBlockKeys - 1) / kBlockKeys * kBlockKeys;
  char* target = reinterpret_cast<char*>(packed);
  for (int64_t d = 0; d < dim; d += kPanel) {
    const char* column = static_cast<const char*>(values) + d * 2;
    const __mmask32 channels = dim - d >= kPanel ? ~0u : (1u << (dim - d)) - 1;
    const auto key = [&](int64_t j) {
      return j < num_keys ? _mm512_maskz_loadu_epi16(channels, column + j * stride) : __m512i{};
    };
    for (int64_t j = 0; j < end; j += 2) {
      store_pairs(target + j / 2 * kStepBytes, key(j), key(j + 1));
    }
    target += kPanelValueBytes;
  }
}

// --- matrix products

void scores_in_tiles(Element element, const float* queries, const float* packed_keys,
                     int64_t num_rows, int64_t num_keys, int64_t dim, float* result) {
  if (element != Element::kBFloat16) {
    return scores(element, queries, packed_keys, num_rows, num_keys, dim, result);
  }
  const int64_t steps = tile_steps(dim);
  for_blocks_of_rows(num_rows, [&]<bool kSecond>(int64_t begin, int64_t) {
    const char* rows = reinterpret_cast<const char*>(queries + begin * steps);
    const auto score_panel = [&]<bool kRight>(int64_t key) {
      const char* panel = reinterpret_cast<const char*>(packed_keys + key * steps);
      clear_sums<kSecond, kRight>();
      for (int64_t s = 0; s < steps; s += kBlockSteps) {
        load_panel<kRight>(panel + s * kStepBytes);
        add_rows<kSecond, kRight>(rows + s * 4, steps * 4);
      }
      store_sums<kSecond, kRight>(result + begin * kTileKeys + key, kTileKeys);
    };
    for (int64_t key = 0; key < num_keys; key += kPanel) {
      if (num_keys - key > kTileColumns) {
        score_panel.template operator()<true>(key);
      } else {
        score_panel.template operator()<false>(key);
      }
    }
  });
}

// The first `count` of 16 weights, then zeros, because the other weights may be anything, even NaN.
inline __m512 load_weights(const float* weights, int64_t count) {
  if (count <= 0) return _mm512_setzero_ps();
  const auto kept = static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
  return _mm512_maskz_loadu_ps(kept, weights);
}

// A row of weights as the sum of two bfloat16 numbers. NaN stays NaN in both.
inline void split_weights(const float* weights, int64_t num_keys, char* high, char* low) {
  for (int64_t j = 0; j < num_keys; j += kBlockKeys) {
    const __m512 first = load_weights(weights + j, num_keys - j);
    const __m512 second = load_weights(weights + j + kLanes, num_keys - j - kLanes);
    const auto rounded = bits<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    _mm512_storeu_si512(high + j * 2, rounded);
    const Vec rest_first = first - LoadBFloat16::load_vec(high + j * 2);
    const Vec rest_second = second - LoadBFloat16::load_vec(high + (j + kLanes) * 2);
    _mm512_storeu_si512(low + j * 2, bits<__m512i>(_mm512_cvtne2ps_pbh(rest_second, rest_first)));
  }
}

void scale_row(float* row, float factor, int64_t floats) {
  for (int64_t v = 0; v < floats; v += kLanes) store(row + v, load(row + v) * factor);
}

void accumulate_in_tiles(Element element, const float* weights, const float* packed_values,
                         const float* alpha, int64_t num_rows, int64_t num_keys, int64_t dim,
                         float* output) {
  if (element != Element::kBFloat16) {
    return accumulate(element, weights, packed_values, alpha, num_rows, num_keys, dim, output);
  }
  alignas(64) char high[kMostRows * kKeyBytes];
  alignas(64) char low[kMostRows * kKeyBytes];
  const int64_t stride = padded(dim);
  for_blocks_of_rows(num_rows, [&]<bool kSecond>(int64_t begin, int64_t rows) {
    float* const block = output + begin * stride;
    for (int64_t r = 0; r < rows; ++r) {
      split_weights(weights + (begin + r) * kTileKeys, num_keys, high + r * kKeyBytes,
                    low + r * kKeyBytes);
      if (alpha[begin + r] != 1.0f) scale_row(block + r * stride, alpha[begin + r], stride);
    }
    finish_writes();
    const auto add_panel = [&]<bool kRight>(const char* panel, float* out) {
      load_sums<kSecond, kRight>(out, stride);
      for (int64_t j = 0; j < num_keys; j += kBlockKeys) {
        load_panel<kRight>(panel + j / 2 * kStepBytes);
        add_rows<kSecond, kRight>(high + j * 2, kKeyBytes);
        add_rows<kSecond, kRight>(low + j * 2, kKeyBytes);
      }
      store_sums<kSecond, kRight>(out, stride);
    };
    const char* panel = reinterpret_cast<const char*>(packed_values);
    for (int64_t d = 0; d < dim; d += kPanel, panel += kPanelValueBytes) {
      if (dim - d > kTileColumns) {
        add_panel.template operator()<true>(panel, block + d);
      } else {
        add_panel.template operator()<false>(panel, block + d);
      }
    }
  });
}

constexpr TileKernels make_amx_kernels() {
  TileKernels kernels = make_tile_kernels("amx_bf16");
  kernels.slice_rows = kMostRows;
  kernels.pack_query = pack_query_in_tiles;
  kernels.pack_keys = pack_keys_in_tiles;
  kernels.pack_values = pack_values_in_tiles;
  kernels.scores = scores_in_tiles;
  kernels.accumulate = accumulate_in_tiles;
  return kernels;
}

}  // namespace

const TileKernels kTileKernelsAmx = make_amx_kernels();

}  // namespace blockscope
