// Linear kernels of bfloat16 for AMX; flags in CMakeLists.txt.
//
// 16 steps of a panel are two tiles as they lie, one of each half of its columns; 16 steps of 16
// rows of x are one. One row takes the same instructions as many, so that its bits are the same.
// Executed in emulation only (tests/kernels/amx_emulation.h) and never timed.
#include "kernels/linear_kernels_impl.h"

namespace blockscope {
namespace {

constexpr int64_t kTileHeight = 16;  // rows of x
constexpr int64_t kBlockSteps = 16;  // rows of a tile of weights
constexpr int64_t kRowBytes = 64;    // of every tile
constexpr int64_t kBlockBytes = kBlockSteps * kPanelStepBytes;
static_assert(kBlockSteps * 4 == kRowBytes && kPanelStepBytes == 2 * kRowBytes);

// How far ahead of the tiles memory is asked for weights.
constexpr int64_t kAheadBytes = 2 * kBlockBytes;

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// GCC 12 does not know that tile loads read memory (all of a configuration): before them, what was
// written must be there.
inline void finish_writes() { asm volatile("" ::: "memory"); }

// Tiles 0 and 1: sums of the first rows, left and right half of the columns; 2 and 3: of the rows
// behind them. 4 and 5: those rows of x. 6 and 7: the two halves of the weights.
void configure(int64_t rows) {
  const auto first = static_cast<uint8_t>(rows < kTileHeight ? rows : kTileHeight);
  const auto second = static_cast<uint8_t>(rows - first);
  const uint8_t of_tiles[8] = {first, first,  second,      second,
                               first, second, kBlockSteps, kBlockSteps};
  TileConfig config;
  for (size_t i = 0; i < 8; ++i) {
    config.rows[i] = of_tiles[i];
    config.row_bytes[i] = of_tiles[i] == 0 ? 0 : kRowBytes;
  }
  finish_writes();
  _tile_loadconfig(&config);
}

// Adds the products of one block of steps. kSecond: whether there are more rows than a tile has.
template <bool kSecond>
inline void add_block(const char* x, int64_t x_stride, const char* weights) {
  _tile_loadd(6, weights, kPanelStepBytes);
  _tile_loadd(4, x, x_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, weights + kRowBytes, kPanelStepBytes);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kSecond) {
    _tile_loadd(5, x + kTileHeight * x_stride, x_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

struct AmxSums {
  template <class Finish>
  static void for_rows(const PanelProduct& p, const Finish& finish) {
    alignas(64) float sums[2 * kTileHeight * kPanelColumns];
    int64_t configured = 0;
    for (int64_t begin = 0; begin < p.rows; begin += 2 * kTileHeight) {
      const int64_t rest = p.rows - begin;
      const int64_t rows = rest < 2 * kTileHeight ? rest : 2 * kTileHeight;
      if (rows != configured) configure(rows);
      configured = rows;
      (rows > kTileHeight ? sum<true> : sum<false>)(p, begin, rows, sums);
      for (int64_t r = 0; r < rows; ++r) {
        finish(sums + r * kPanelColumns, p.out + (begin + r) * p.out_stride);
      }
    }
    _tile_release();
  }

 private:
  template <bool kSecond>
  static void sum(const PanelProduct& p, int64_t begin, int64_t rows, float* sums) {
    const char* x = p.x + begin * p.x_stride;
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kSecond) {
      _tile_zero(2);
      _tile_zero(3);
    }
    const int64_t full = p.steps / kBlockSteps;
    for (int64_t b = 0; b < full; ++b) {
      const char* weights = p.panel + b * kBlockBytes;
      for (int64_t i = 0; i < kBlockBytes; i += 64) {
        _mm_prefetch(weights + kAheadBytes + i, _MM_HINT_T0);
      }
      add_block<kSecond>(x + b * kRowBytes, p.x_stride, weights);
    }
    if (p.steps > full * kBlockSteps) {
      // Zeros behind the last step, of both sides: neither may be NaN.
      alignas(64) char last_x[2 * kTileHeight * kRowBytes] = {};
      alignas(64) char last_weights[kBlockBytes] = {};
      const auto steps = static_cast<size_t>(p.steps - full * kBlockSteps);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(last_x + r * kRowBytes, x + r * p.x_stride + full * kRowBytes, steps * 4);
      }
      std::memcpy(last_weights, p.panel + full * kBlockBytes, steps * kPanelStepBytes);
      finish_writes();
      add_block<kSecond>(last_x, kRowBytes, last_weights);
    }
    constexpr int64_t kStride = kPanelColumns * 4;
    _tile_stored(0, sums, kStride);
    _tile_stored(1, sums + kLanes, kStride);
    if constexpr (kSecond) {
      _tile_stored(2, sums + kTileHeight * kPanelColumns, kStride);
      _tile_stored(3, sums + kTileHeight * kPanelColumns + kLanes, kStride);
    }
  }
};

}  // namespace

const LinearKernels kLinearBFloat16Amx = make_linear_kernels<BFloat16, AmxSums>("amx_bf16");

}  // namespace blockscope
