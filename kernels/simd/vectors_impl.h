// Vectors for the kernels that are compiled once per instruction set, as wide as the compiler flags
// of the including file allow. Also loads of every element type, and exp. Everything is in an
// unnamed namespace.
#pragma once

#include <cstring>

#include "kernels/simd/element.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace blockscope {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif
using Vec = float __attribute__((vector_size(kLanes * 4)));
using VecI = int32_t __attribute__((vector_size(kLanes * 4)));
using VecU = uint32_t __attribute__((vector_size(kLanes * 4)));
using VecU16 = uint16_t __attribute__((vector_size(kLanes * 2)));

constexpr float kInfinity = __builtin_inff();

inline Vec broadcast(float x) { return x - Vec{}; }

inline VecI lane_index() {
  VecI index{};
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

#if defined(__AVX512BF16__)
/// sum + a * b for the pairs of bfloat16 in each lane of `a` and `b`.
template <class Pairs>
inline Vec add_pair_products(Vec sum, Pairs a, Pairs b) {
#if defined(__clang__)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));  // clang 16 crashes on the intrinsic
  return sum;
#else
  return _mm512_dpbf16_ps(sum, bits<__m512bh>(a), bits<__m512bh>(b));
#endif
}
#endif

// --- loads: one vector of depth units, as float32

struct LoadFloat32 {
  static constexpr int64_t kUnitBytes = 4;
  static Vec load_vec(const char* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

struct LoadBFloat16 {
  static constexpr int64_t kUnitBytes = 2;
  static Vec load_vec(const char* p) {
    VecU16 raw;
    std::memcpy(&raw, p, sizeof raw);
    return bits<Vec>(__builtin_convertvector(raw, VecU) << 16);
  }
};

struct LoadFloat16 {
  static constexpr int64_t kUnitBytes = 2;
  static Vec load_vec(const char* p) {
    VecU16 raw;
    std::memcpy(&raw, p, sizeof raw);
#if defined(__AVX512F__)
    return _mm512_maskz_cvtph_ps(0xffff, bits<__m256i>(raw));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(bits<__m128i>(raw));
#else
    const VecU half = __builtin_convertvector(raw, VecU);
    const VecU sign = (half & 0x8000u) << 16;
    const VecU magnitude = half & 0x7fffu;
    // Normal numbers: rebias the exponent; Inf and NaN keep an all-ones exponent.
    const VecU rebias = magnitude >= 0x7c00u ? VecU{} + 0x70000000u : VecU{} + 0x38000000u;
    const VecU normal = (magnitude << 13) + rebias;
    // Subnormal numbers: an integer multiple of 2^-24.
    const Vec subnormal =
        __builtin_convertvector(bits<VecI>(magnitude), Vec) * 5.9604644775390625e-8f;
    return bits<Vec>((magnitude < 0x400u ? bits<VecU>(subnormal) : normal) | sign);
#endif
  }
};

// The vector at p, with zeros after the first `bytes` bytes, which are the only ones read.
template <class Load>
inline Vec load_some(const char* p, int64_t bytes) {
  if (bytes >= kLanes * Load::kUnitBytes) return Load::load_vec(p);
#if defined(__AVX512BW__)
  char copy[kLanes * 4];
  _mm512_storeu_si512(copy, _mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1, p));
#else
  char copy[kLanes * 4] = {};
  std::memcpy(copy, p, static_cast<size_t>(bytes));
#endif
  return Load::load_vec(copy);
}

// The larger of a and b; b if one of them is NaN.
inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);
#else
  return a > b ? a : b;
#endif
}

// Whether a lane is above the bound; NaN is not.
inline bool any_above(Vec v, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(v, _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
  const VecI above = v > bound;
  int32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= above[lane];
  return any != 0;
#endif
}

// exp for x <= 88, below 1.5 ulp; 0 below -87.33, where the result would be subnormal. Not finite
// above 88.73. NaN stays.
inline Vec exp_vec(Vec x) {
#if !defined(__AVX512F__)
  const VecI tiny = x < -87.33654f;
  const VecI huge = x > 88.37f;  // 2^n would be infinite
  x = larger(broadcast(-87.33654f), x);
#endif
  // Adding 1.5 * 2^23 rounds to an integer that then sits in the low bits.
  const Vec shifted = x * 1.44269504f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693359375f;  // ln 2 in two parts; n * the first is exact
  r = r - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
  // p * 2^n for any n, so no input needs a range reduction first.
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, n);
#else
  const Vec power = bits<Vec>((bits<VecU>(shifted) << 23) + 0x3f800000u);
  return tiny ? Vec{} : huge ? broadcast(kInfinity) : p * power;
#endif
}

}  // namespace
}  // namespace blockscope
