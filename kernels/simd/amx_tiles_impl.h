// Shared parts of the AMX kernels: products of up to 32 rows by a panel of 32 columns, with sums in
// four tiles. A step of the depth is two bfloat16 elements. 16 steps of a panel are two tiles, one
// per half of its columns, without rearrangement. 16 steps of 16 rows are one tile. Every number of
// rows takes the same instructions, so a row's bits are always the same. Everything is in an
// unnamed namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace blockscope {
namespace {

constexpr int64_t kTileHeight = 16;  // rows of the first operand
constexpr int64_t kMostRows = 2 * kTileHeight;
constexpr int64_t kTileColumns = 16;  // half a panel
constexpr int64_t kBlockSteps = 16;   // rows of a tile of a panel
constexpr int64_t kRowBytes = 64;     // of every tile
constexpr int64_t kStepBytes = 2 * kRowBytes;
constexpr int64_t kBlockBytes = kBlockSteps * kStepBytes;
static_assert(kBlockSteps * 4 == kRowBytes && kTileColumns * 4 == kRowBytes);

// The data that ldtilecfg reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// GCC 12 does not know that tile loads and configurations read memory, so earlier writes must be
// finished before them.
inline void finish_writes() { asm volatile("" ::: "memory"); }

// Tiles 0 and 1: sums of the first rows, left and right half of the columns. Tiles 2 and 3: sums of
// the rows after them. Tiles 4 and 5: these rows of the first operand. Tiles 6 and 7: the two
// halves of the panel.
inline void configure(int64_t rows) {
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

// Calls f.operator()<more than a tile>(first, rows) for every block of up to kMostRows rows, with
// tiles configured for it.
template <class F>
inline void for_blocks_of_rows(int64_t num_rows, F f) {
  int64_t configured = 0;
  for (int64_t begin = 0; begin < num_rows; begin += kMostRows) {
    const int64_t rest = num_rows - begin;
    const int64_t rows = rest < kMostRows ? rest : kMostRows;
    if (rows != configured) configure(rows);
    configured = rows;
    if (rows > kTileHeight) {
      f.template operator()<true>(begin, rows);
    } else {
      f.template operator()<false>(begin, rows);
    }
  }
  _tile_release();  // other kernels of this thread use other shapes
}

// kSecond: there are more rows than a tile has. kRight: the panel's right half is needed.
template <bool kSecond, bool kRight>
inline void clear_sums() {
  _tile_zero(0);
  if constexpr (kRight) _tile_zero(1);
  if constexpr (kSecond) _tile_zero(2);
  if constexpr (kSecond && kRight) _tile_zero(3);
}

// Loads the sums from memory; `stride` in floats.
template <bool kSecond, bool kRight>
inline void load_sums(const float* sums, int64_t stride) {
  const int64_t bytes = stride * 4;
  _tile_loadd(0, sums, bytes);
  if constexpr (kRight) _tile_loadd(1, sums + kTileColumns, bytes);
  if constexpr (kSecond) {
    sums += kTileHeight * stride;
    _tile_loadd(2, sums, bytes);
    if constexpr (kRight) _tile_loadd(3, sums + kTileColumns, bytes);
  }
}

// One block of steps: kBlockBytes of a panel.
template <bool kRight>
inline void load_panel(const char* panel) {
  _tile_loadd(6, panel, kStepBytes);
  if constexpr (kRight) _tile_loadd(7, panel + kRowBytes, kStepBytes);
}

struct Nothing {
  void operator()() const {}
};

// Adds the products of rows, `stride` bytes apart, and the panel's block; calls `between` before
// each of the two or four products.
template <bool kSecond, bool kRight, class Between = Nothing>
inline void add_rows(const char* rows, int64_t stride, Between between = {}) {
  _tile_loadd(4, rows, stride);
  between();
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kRight) {
    between();
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (kSecond) {
    _tile_loadd(5, rows + kTileHeight * stride, stride);
    between();
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRight) {
      between();
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// `stride` in floats.
template <bool kSecond, bool kRight>
inline void store_sums(float* sums, int64_t stride) {
  const int64_t bytes = stride * 4;
  _tile_stored(0, sums, bytes);
  if constexpr (kRight) _tile_stored(1, sums + kTileColumns, bytes);
  if constexpr (kSecond) {
    sums += kTileHeight * stride;
    _tile_stored(2, sums, bytes);
    if constexpr (kRight) _tile_stored(3, sums + kTileColumns, bytes);
  }
}

}  // namespace
}  // namespace blockscope
