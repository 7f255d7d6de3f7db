// The one body of the row kernels, compiled once per instruction set
// (cmake/instruction_sets.cmake). Everything is in an unnamed namespace.
#pragma once

#include <cstring>

#include "kernels/simd/row_kernels.h"
#include "kernels/simd/stores_impl.h"

namespace blockscope {
namespace {

// Sums over a vocabulary are sums of sums, because a single one in float32 would lose digits.
constexpr int64_t kSummedAtOnce = 64 * kLanes;

inline float sum_of(Vec v) {
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

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
    // With a table of the element's type, the result of every operator is rounded.
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

void convert(Element from, const void* x, int64_t count, Element to, void* output) {
  with_type(from, [&]<class From>(From) {
    with_type(to, [&]<class To>(To) {
      const auto* in = static_cast<const char*>(x);
      for (int64_t i = 0; i < count; i += kLanes) {
        const Vec v = load_some<From>(in + i * From::kUnitBytes, (count - i) * From::kUnitBytes);
        store_some<To>(static_cast<char*>(output) + i * To::kUnitBytes, v,
                       (count - i) * To::kUnitBytes);
      }
    });
  });
}

void add(Element element, const void* a, const void* b, int64_t count, void* output) {
  with_type(element, [&]<class Type>(Type) {
    const int64_t end = count * Type::kUnitBytes;
    for (int64_t at = 0; at < end; at += kLanes * Type::kUnitBytes) {
      const Vec x = load_some<Type>(static_cast<const char*>(a) + at, end - at);
      const Vec y = load_some<Type>(static_cast<const char*>(b) + at, end - at);
      store_some<Type>(static_cast<char*>(output) + at, x + y, end - at);
    }
  });
}

void silu_multiply(Element element, const void* gate, const void* up, int64_t count, void* output) {
  with_type(element, [&]<class Type>(Type) {
    const int64_t end = count * Type::kUnitBytes;
    for (int64_t at = 0; at < end; at += kLanes * Type::kUnitBytes) {
      const Vec g = load_some<Type>(static_cast<const char*>(gate) + at, end - at);
      const Vec u = load_some<Type>(static_cast<const char*>(up) + at, end - at);
      store_some<Type>(static_cast<char*>(output) + at, silu_times<Type>(g, u), end - at);
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
    for (int64_t begin = 0; begin < whole; begin += kSummedAtOnce) {
      const int64_t end = begin + kSummedAtOnce < whole ? begin + kSummedAtOnce : whole;
      Vec some{};
      for (int64_t i = begin; i < end; i += kLanes) {
        const Vec v = Type::load_vec(at(i));
        some += exp_vec(v - top);
        if (found >= 0) continue;
        const VecI same = v == top;
        for (int lane = 0; lane < kLanes && found < 0; ++lane) {
          if (same[lane] != 0) found = i + lane;
        }
      }
      sums += some;
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

void odds(Element element, const void* x, int64_t count, int64_t index, int64_t* rank,
          float* probability, float* entropy) {
  with_type(element, [&]<class Type>(Type) {
    const auto* in = static_cast<const char*>(x);
    const auto at = [&](int64_t i) { return in + i * Type::kUnitBytes; };
    const auto one = [&](int64_t i) { return load_some<Type>(at(i), Type::kUnitBytes)[0]; };
    const int64_t whole = count / kLanes * kLanes;
    Vec rest = broadcast(-kInfinity);  // adds nothing to the sums
    for (int64_t i = whole; i < count; ++i) rest[i - whole] = one(i);
    const float own = one(index);
    Vec largest = rest;
    VecI larger_ones = rest > own;
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec v = Type::load_vec(at(i));
      largest = v > largest ? v : largest;
      larger_ones += v > own;
    }
    float top = -kInfinity;
    int64_t larger_than_own = 0;
    for (int i = 0; i < kLanes; ++i) {
      top = largest[i] > top ? largest[i] : top;
      larger_than_own -= larger_ones[i];
    }
    Vec sums{};
    Vec weighted{};  // by the logit, relative to the largest
    const auto add_terms = [top](Vec v, Vec& sum, Vec& by_logit) {
      const Vec below = v - top;
      const Vec p = exp_vec(below);
      sum += p;
      by_logit += p == 0.0f ? Vec{} : p * below;
    };
    add_terms(rest, sums, weighted);
    for (int64_t begin = 0; begin < whole; begin += kSummedAtOnce) {
      const int64_t end = begin + kSummedAtOnce < whole ? begin + kSummedAtOnce : whole;
      Vec sum{};
      Vec by_logit{};
      for (int64_t i = begin; i < end; i += kLanes) add_terms(Type::load_vec(at(i)), sum, by_logit);
      sums += sum;
      weighted += by_logit;
    }
    const float sum = sum_of(sums);
    *rank = larger_than_own;
    *probability = exp_vec(broadcast(own - top))[0] / sum;
    *entropy = __builtin_logf(sum) - sum_of(weighted) / sum;
  });
}

constexpr RowKernels make_row_kernels(const char* name) {
  return {name, rms_norm, rotate, convert, add, silu_multiply, best, odds};
}

}  // namespace
}  // namespace blockscope
