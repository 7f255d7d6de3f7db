// The one body of the row kernels, included by the row_kernels_<isa>.cpp. Everything is in an
// unnamed namespace.
#pragma once

#include <cstring>

#include "kernels/row_kernels.h"
#include "kernels/vectors_impl.h"

namespace blockscope {
namespace {

// --- stores: one vector, rounded to nearest even

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
    for (int i = 0; i < kLanes; ++i) {
      const _Float16 narrow = static_cast<_Float16>(v[i]);
      std::memcpy(p + i * 2, &narrow, 2);
    }
#endif
  }
};

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

// The first elements of a vector, as many as `bytes` bytes hold.
template <class Type>
inline void store_some(char* p, Vec v, int64_t bytes) {
  if (bytes >= kLanes * Type::kUnitBytes) return Type::store_vec(p, v);
  char copy[kLanes * 4];
  Type::store_vec(copy, v);
  std::memcpy(p, copy, static_cast<size_t>(bytes));
}

template <class F>
inline void with_type(Element element, F f) {
  if (element == Element::kFloat32) return f(Float32{});
  if (element == Element::kFloat16) return f(Float16{});
  f(BFloat16{});
}

inline float sum_of(Vec v) {
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// --- kernels

void rms_norm(Element element, const void* x, const void* weight, int64_t dim, float eps,
              bool weight_first, void* output) {
  with_type(element, [&]<class Type>(Type) {
    const int64_t end = dim * Type::kUnitBytes;
    const int64_t step = kLanes * Type::kUnitBytes;
    const auto* in = static_cast<const char*>(x);
    const auto* scale = static_cast<const char*>(weight);
    auto* out = static_cast<char*>(output);
    Vec squares{};
    for (int64_t at = 0; at < end; at += step) {
      const Vec v = load_some<Type>(in + at, end - at);
      squares += v * v;
    }
    const float factor = 1.0f / __builtin_sqrtf(sum_of(squares) / static_cast<float>(dim) + eps);
    for (int64_t at = 0; at < end; at += step) {
      Vec v = load_some<Type>(in + at, end - at) * factor;
      if (!weight_first) v = rounded<Type>(v);
      store_some<Type>(out + at, v * load_some<Type>(scale + at, end - at), end - at);
    }
  });
}

template <class Type, class Table>
void rotate_as(const char* x, const char* cos, const char* sin, int64_t turning, int64_t dim,
               char* out) {
  const int64_t half = turning / 2;
  const auto add = [](Vec a, Vec b) {
    // With a table of the element's own type every operator's result is stored.
    constexpr bool kStores = Table::kUnitBytes == Type::kUnitBytes;
    return kStores ? rounded<Type>(a) + rounded<Type>(b) : a + b;
  };
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const auto element = [&](const char* row, int64_t at) {
      return load_some<Type>(row + at * Type::kUnitBytes, left * Type::kUnitBytes);
    };
    const auto entry = [&](const char* row, int64_t at) {
      return load_some<Table>(row + at * Table::kUnitBytes, left * Table::kUnitBytes);
    };
    const Vec low = element(x, i);
    const Vec high = element(x, i + half);
    const Vec first = add(low * entry(cos, i), -high * entry(sin, i));
    const Vec second = add(high * entry(cos, i + half), low * entry(sin, i + half));
    store_some<Type>(out + i * Type::kUnitBytes, first, left * Type::kUnitBytes);
    store_some<Type>(out + (i + half) * Type::kUnitBytes, second, left * Type::kUnitBytes);
  }
  std::memcpy(out + turning * Type::kUnitBytes, x + turning * Type::kUnitBytes,
              static_cast<size_t>((dim - turning) * Type::kUnitBytes));
}

void rotate(Element element, const void* x, Element table, const void* cos, const void* sin,
            int64_t turning, int64_t dim, void* output) {
  with_type(element, [&]<class Type>(Type) {
    const auto as = [&]<class Table>(Table) {
      rotate_as<Type, Table>(static_cast<const char*>(x), static_cast<const char*>(cos),
                             static_cast<const char*>(sin), turning, dim,
                             static_cast<char*>(output));
    };
    if (table == Element::kFloat32) return as(Float32{});
    as(Type{});
  });
}

void silu_multiply(Element element, const void* gate, const void* up, int64_t count, void* output) {
  with_type(element, [&]<class Type>(Type) {
    const int64_t end = count * Type::kUnitBytes;
    for (int64_t at = 0; at < end; at += kLanes * Type::kUnitBytes) {
      const Vec g = load_some<Type>(static_cast<const char*>(gate) + at, end - at);
      const Vec silu = rounded<Type>(g / (exp_vec(-g) + 1.0f));
      const Vec u = load_some<Type>(static_cast<const char*>(up) + at, end - at);
      store_some<Type>(static_cast<char*>(output) + at, silu * u, end - at);
    }
  });
}

void best(Element element, const void* x, int64_t count, int64_t* index, float* probability) {
  with_type(element, [&]<class Type>(Type) {
    const auto* in = static_cast<const char*>(x);
    const int64_t whole = count / kLanes * kLanes;
    const auto at = [&](int64_t i) { return in + i * Type::kUnitBytes; };
    const auto one = [&](int64_t i) { return load_some<Type>(at(i), Type::kUnitBytes)[0]; };
    Vec largest = broadcast(-kInfinity);
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec v = Type::load_vec(at(i));
      largest = v > largest ? v : largest;
    }
    float top = -kInfinity;
    for (int i = 0; i < kLanes; ++i) top = largest[i] > top ? largest[i] : top;
    for (int64_t i = whole; i < count; ++i) top = one(i) > top ? one(i) : top;
    Vec sums{};
    int64_t found = -1;
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec v = Type::load_vec(at(i));
      sums += exp_vec(v - top);
      if (found >= 0) continue;
      const VecI same = v == top;
      for (int lane = 0; lane < kLanes && found < 0; ++lane) {
        if (same[lane] != 0) found = i + lane;
      }
    }
    float sum = sum_of(sums);
    for (int64_t i = whole; i < count; ++i) {
      const float v = one(i);
      sum += exp_vec(broadcast(v - top))[0];
      if (found < 0 && v == top) found = i;
    }
    *index = found < 0 ? 0 : found;
    *probability = 1.0f / sum;
  });
}

constexpr RowKernels make_row_kernels(const char* name) {
  return {name, rms_norm, rotate, silu_multiply, best};
}

}  // namespace
}  // namespace blockscope
