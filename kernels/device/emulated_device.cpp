// The instructions that a warp executes together, and 16-bit floats. Fragments of m16n8k16, with
// row = lane / 4 and pair = lane % 4 * 2: a[0] holds (row, pair), a[1] (row + 8, pair); a[2] and
// a[3] hold the same, 8 columns later. b0 holds (pair, row), b1 (pair + 8, row). c holds (row,
// pair), (row, pair + 1), then the same of row + 8.
#include "kernels/device/device.h"

#include <cstring>

#include "kernels/device/race_detection.h"

namespace blockscope::emulated {
namespace {

struct MatrixSlot {
  uint32_t* r;
  const char* row;
};

// Rows of one matrix should lie in 8 different groups of four banks.
void count_conflicts(const char* const* rows) {
  unsigned groups = 0;
  for (int i = 0; i < 8; ++i) groups |= 1u << (reinterpret_cast<uintptr_t>(rows[i]) / 16 % 8);
  counters().bank_conflicts += 8 - std::popcount(groups);
}

template <bool kTransposed>
void load_matrices(MatrixSlot* const* lanes) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    const char* rows[8];
    for (int i = 0; i < 8; ++i) rows[i] = lanes[matrix * 8 + i]->row;
    count_conflicts(rows);
    for (int lane = 0; lane < 32; ++lane) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = kTransposed ? lane % 4 * 2 + i : lane / 4;
        const int column = kTransposed ? lane / 4 : lane % 4 * 2 + i;
        std::memcpy(&pair[i], rows[row] + column * 2, 2);
      }
      lanes[lane]->r[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
  }
}

struct ProductSlot {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

float truncated(double sum) {
  const auto nearest = static_cast<float>(sum);
  return std::abs(static_cast<double>(nearest)) > std::abs(sum) ? std::nextafter(nearest, 0.0f)
                                                                : nearest;
}

template <class Scalar>
void multiply(ProductSlot* const* lanes) {
  ++counters().matrix_products;
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      float* at = &a[row + i % 2 * 8][pair + i / 2 * 8];
      at[0] = unpack_low(lanes[lane]->a[i], Scalar{});
      at[1] = unpack_high(lanes[lane]->a[i], Scalar{});
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + i * 8][row] = unpack_low(lanes[lane]->b[i], Scalar{});
      b[pair + i * 8 + 1][row] = unpack_high(lanes[lane]->b[i], Scalar{});
    }
  }
  const bool truncate = rounding() == Rounding::kTruncate;
  for (int row = 0; row < 16; ++row) {
    float* c[8];
    for (int n = 0; n < 8; ++n) c[n] = &lanes[row % 8 * 4 + n / 2]->c[row / 8 * 2 + n % 2];
    if (truncate) {
      for (int n = 0; n < 8; ++n) {
        double sum = *c[n];
        for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][n];
        *c[n] = truncated(sum);
      }
      continue;
    }
    float sums[8];
    for (int n = 0; n < 8; ++n) sums[n] = *c[n];
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) sums[n] += a[row][k] * b[k][n];
    }
    for (int n = 0; n < 8; ++n) *c[n] = sums[n];
  }
}

}  // namespace

void load_matrix_x4(uint32_t (&r)[4], const void* row, Where where) {
  check_shared(row, 16, "load_matrix_x4", where);
  races::reads_16(row);
  MatrixSlot slot{r, static_cast<const char*>(row)};
  with_warp("load_matrix_x4", where, slot,
            [](MatrixSlot* const* lanes) { load_matrices<false>(lanes); });
}

void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row, Where where) {
  check_shared(row, 16, "load_matrix_x4_transposed", where);
  races::reads_16(row);
  MatrixSlot slot{r, static_cast<const char*>(row)};
  with_warp("load_matrix_x4_transposed", where, slot,
            [](MatrixSlot* const* lanes) { load_matrices<true>(lanes); });
}

void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, BFloat16,
                  Where where) {
  ProductSlot slot{c, a, {b0, b1}};
  with_warp("multiply_add", where, slot,
            [](ProductSlot* const* lanes) { multiply<BFloat16>(lanes); });
}

void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Half,
                  Where where) {
  ProductSlot slot{c, a, {b0, b1}};
  with_warp("multiply_add", where, slot, [](ProductSlot* const* lanes) { multiply<Half>(lanes); });
}

float to_float(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  // The exponents' biases differ by 112. The multiplication also converts subnormals.
  float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  if (magnitude >= 0x7c00u) value = std::bit_cast<float>(0x7f800000u | magnitude << 13);
  return (x.bits & 0x8000u) != 0 ? -value : value;
}

template <>
float round_to<float>(float x) {
  return x;
}

template <>
BFloat16 round_to<BFloat16>(float x) {
  if (std::isnan(x)) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
Half round_to<Half>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7fff;
  } else if (magnitude >= 0x47800000u) {  // 2^16
    half = 0x7c00;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum's last bit is worth 2^-24
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace blockscope::emulated
