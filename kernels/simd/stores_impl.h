// Stores of one vector to every element type, rounded to nearest even, for the kernels that are
// compiled once per instruction set. Everything is in an unnamed namespace.
#pragma once

#include <cstring>

#include "kernels/simd/vectors_impl.h"

namespace blockscope {
namespace {

struct Float32 : LoadFloat32 {
  static void store_vec(char* p, Vec v) { std::memcpy(p, &v, sizeof v); }
};

struct BFloat16 : LoadBFloat16 {
  static void store_vec(char* p, Vec v) {
    const VecU raw = bits<VecU>(v);
    const VecU rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
    const VecU nan = VecU{} + 0x7fc0u;
    const VecU16 narrow = __builtin_convertvector(v == v ? rounded : nan, VecU16);
    std::memcpy(p, &narrow, sizeof narrow);
  }
};

struct Float16 : LoadFloat16 {
  static void store_vec(char* p, Vec v) {
#if defined(__AVX512F__)
    const __m256i narrow =
        _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    std::memcpy(p, &narrow, sizeof narrow);
#elif defined(__F16C__)
    const __m128i narrow = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    std::memcpy(p, &narrow, sizeof narrow);
#else
    // By integers, because g++ 11 has no _Float16 in C++.
    const VecU sign = bits<VecU>(v) & 0x80000000u;
    const VecU size = bits<VecU>(v) ^ sign;
    const VecU normal = (size + 0xc8000fffu + ((size >> 13) & 1u)) >> 13;
    const VecU subnormal =
        bits<VecU>(bits<Vec>(size) + 0.5f) - 0x3f000000u;  // 0.5's last bit is 2^-24
    const VecU special = size > 0x7f800000u ? VecU{} + 0x7e00u : VecU{} + 0x7c00u;  // NaN, infinity
    const VecU finite = size < 0x38800000u ? subnormal : normal;
    const VecU half = (size < 0x47800000u ? finite : special) | (sign >> 16);
    const VecU16 narrow = __builtin_convertvector(half, VecU16);
    std::memcpy(p, &narrow, sizeof narrow);
#endif
  }
};

// Calls f with the type of `element`.
template <class F>
inline auto with_type(Element element, F f) {
  if (element == Element::kFloat32) return f(Float32{});
  if (element == Element::kFloat16) return f(Float16{});
  return f(BFloat16{});
}

template <class Type>
inline Vec rounded(Vec v) {
  char copy[kLanes * 4];
  Type::store_vec(copy, v);
  return Type::load_vec(copy);
}

template <>
inline Vec rounded<Float32>(Vec v) {
  return v;
}

// Stores the first elements of a vector: as many as `bytes` bytes hold.
template <class Type>
inline void store_some(char* p, Vec v, int64_t bytes) {
  if (bytes >= kLanes * Type::kUnitBytes) return Type::store_vec(p, v);
  char copy[kLanes * 4];
  Type::store_vec(copy, v);
#if defined(__AVX512BW__)
  _mm512_mask_storeu_epi8(p, (__mmask64{1} << bytes) - 1, _mm512_loadu_si512(copy));
#else
  std::memcpy(p, copy, static_cast<size_t>(bytes));
#endif
}

// silu(gate) * up, with silu(x) = x / (1 + exp(-x)). Rounded like the two operators, except for the
// last store.
template <class Type>
inline Vec silu_times(Vec gate, Vec up) {
  return rounded<Type>(gate / (exp_vec(-gate) + 1.0f)) * up;
}

// gelu(gate) * up, with the tanh approximation x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
template <class Type>
inline Vec gelu_times(Vec gate, Vec up) {
  const Vec turn = (gate * gate * 0.044715f + 1.0f) * gate * -1.5957691216057308f;
  return rounded<Type>(gate / (exp_vec(turn) + 1.0f)) * up;
}

}  // namespace
}  // namespace blockscope
