// The one body of the statistics kernels, compiled once per instruction set
// (cmake/instruction_sets.cmake). Everything is in an unnamed namespace.
#pragma once

#include <type_traits>

#include "kernels/simd/statistics_kernels.h"
#include "kernels/simd/stores_impl.h"

namespace blockscope {
namespace {

constexpr int64_t kHalfLanes = kLanes / 2;
using HalfVec = float __attribute__((vector_size(kHalfLanes * 4)));
using Doubles = double __attribute__((vector_size(kHalfLanes * 8)));

inline Vec magnitude(Vec v) { return bits<Vec>(bits<VecI>(v) & (VecI{} + 0x7fffffff)); }

inline Doubles widened(HalfVec v) {
#ifdef __AVX512F__
  return bits<Doubles>(
      _mm512_maskz_cvtps_pd(0xff, bits<__m256>(v)));  // GCC 12 would use two narrow ones
#else
  return __builtin_convertvector(v, Doubles);
#endif
}
inline Doubles widened(const float* p) {
  HalfVec v;
  std::memcpy(&v, p, sizeof v);
  return widened(v);
}

using TwoDoubles = double __attribute__((vector_size(16)));
using FourDoubles = double __attribute__((vector_size(32)));

// Adds halves to each other, because a chain of single additions would take longer than the
// products of a row.
template <class V>
inline double total_of(V v) {
  if constexpr (sizeof v == sizeof(TwoDoubles)) {
    return v[0] + v[1];
  } else {
    std::conditional_t<sizeof v == 2 * sizeof(FourDoubles), FourDoubles, TwoDoubles> halves[2];
    std::memcpy(halves, &v, sizeof v);
    return total_of(halves[0] + halves[1]);
  }
}
// The sums of two floats each.
inline Doubles pairs_of(Vec v) {
  HalfVec halves[2];
  std::memcpy(halves, &v, sizeof v);
  return widened(halves[0]) + widened(halves[1]);
}
inline double total(Vec v) { return total_of(pairs_of(v)); }

double cosine(const float* a, const float* b, int64_t dim) {
  Doubles dot{};
  Doubles norm_a{};
  Doubles norm_b{};
  int64_t d = 0;
  for (; d + kHalfLanes <= dim; d += kHalfLanes) {
    const Doubles x = widened(a + d);
    const Doubles y = widened(b + d);
    dot += x * y;
    norm_a += x * x;
    norm_b += y * y;
  }
  double sums[3] = {total_of(dot), total_of(norm_a), total_of(norm_b)};
  for (; d < dim; ++d) {
    const auto x = static_cast<double>(a[d]);
    const auto y = static_cast<double>(b[d]);
    sums[0] += x * y;
    sums[1] += x * x;
    sums[2] += y * y;
  }
  // Squares of float32 neither overflow nor vanish in double, so a zero norm means a zero vector.
  if (sums[1] == 0.0 || sums[2] == 0.0) return 0.0;
  return sums[0] / (__builtin_sqrt(sums[1]) * __builtin_sqrt(sums[2]));
}

// Adds up what merge_errors and kept_errors share, a row at a time.
struct MergeTotals {
  Doubles absolute{};
  Doubles dot{};
  Doubles squared[kKindsOfRows + 1] = {};  // by kind; the last: rows that are in no KeptSums
  Doubles reference[kKindsOfRows + 1] = {};

  ErrorSums sums() const {
    ErrorSums result;
    result.absolute = total_of(absolute);
    result.dot = total_of(dot);
    for (int64_t kind = 0; kind <= kKindsOfRows; ++kind) {
      result.squared += total_of(squared[kind]);
      result.reference += total_of(reference[kind]);
    }
    return result;
  }
};

// Products of one row's source and external vectors.
struct PairProducts {
  Vec dot{};
  Vec square_source{};
  Vec square_external{};
};

template <bool kProducts>
inline PairProducts add_row(const MergeRows& merge, int64_t r, int64_t dim, int64_t kind,
                            MergeTotals& totals) {
  const float share = merge.external_weight[r];
  const float source_share = merge.source_weight[r];
  PairProducts products;
  Vec squared{};
  Vec absolute{};
  Vec reference{};
  Vec dot{};
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t bytes = (dim - d) * 4;
    const auto part = [&](const float* rows) {
      return load_some<Float32>(reinterpret_cast<const char*>(rows + r * dim + d), bytes);
    };
    const Vec in = part(merge.internal);
    const Vec external = part(merge.external);
    const Vec source = part(merge.source);
    const Vec ref = in + share * (external - in);
    const Vec got = in + source_share * (source - in);
    const Vec error = got - ref;
    squared += error * error;
    absolute += magnitude(error);
    reference += ref * ref;
    dot += ref * got;
    if constexpr (kProducts) {
      products.dot += source * external;
      products.square_source += source * source;
      products.square_external += external * external;
    }
  }
  totals.squared[kind] += pairs_of(squared);
  totals.absolute += pairs_of(absolute);
  totals.reference[kind] += pairs_of(reference);
  totals.dot += pairs_of(dot);
  return products;
}

inline bool in_merge(const MergeRows& merge, int64_t r) {
  const float share = merge.external_weight[r];
  const float source_share = merge.source_weight[r];
  return share == share && source_share == source_share;
}

ErrorSums merge_errors(const MergeRows& merge, int64_t num_rows, int64_t dim) {
  MergeTotals totals;
  for (int64_t r = 0; r < num_rows; ++r) {
    if (in_merge(merge, r)) add_row<false>(merge, r, dim, 0, totals);
  }
  return totals.sums();
}

ErrorSums kept_errors(const MergeRows& merge, const KeptRows& kept, int64_t num_rows, int64_t dim,
                      KeptSums* sums) {
  MergeTotals totals;
  for (int64_t kind = 0; kind < kKindsOfRows; ++kind) sums[kind] = {};
  for (int64_t r = 0; r < num_rows; ++r) {
    if (!in_merge(merge, r)) continue;
    const float change = kept.source_lse[r] - kept.external_lse[r];
    const bool finite = change - change == 0.0f;  // weights that are no NaN allow -inf
    const int64_t kind = finite ? kept.kind[r] : kKindsOfRows;
    const PairProducts products = add_row<true>(merge, r, dim, kind, totals);
    if (!finite) continue;
    // Squares of float32 are far from the limits of double, so 0 means a zero vector.
    const double squares = total(products.square_source) * total(products.square_external);
    sums[kind].rows += 1.0;
    sums[kind].lse += static_cast<double>(change < 0.0f ? -change : change);
    sums[kind].cosine += squares == 0.0 ? 0.0 : total(products.dot) / __builtin_sqrt(squares);
  }
  for (int64_t kind = 0; kind < kKindsOfRows; ++kind) {
    sums[kind].squared = total_of(totals.squared[kind]);
    sums[kind].reference = total_of(totals.reference[kind]);
  }
  return totals.sums();
}

void external_weights(const float* lse_external, const float* lse_internal, int64_t count,
                      float* weight) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t bytes = (count - i) * 4;
    const auto part = [&](const float* p) {
      return load_some<Float32>(reinterpret_cast<const char*>(p + i), bytes);
    };
    const Vec external = part(lse_external);
    const Vec gap = part(lse_internal) - external;
    // exp_vec is limited to 88, where the share is below 1e-38.
    const Vec share = 1.0f / (1.0f + exp_vec(gap > 88.0f ? broadcast(88.0f) : gap));
    store_some<Float32>(reinterpret_cast<char*>(weight + i), external == -kInfinity ? Vec{} : share,
                        bytes);
  }
}

float unit_scale(Element element, const void* x, int64_t dim) {
  return with_type(element, [&]<class Type>(Type) {
    const auto* in = static_cast<const char*>(x);
    Vec squares{};
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vec v = load_some<Type>(in + d * Type::kUnitBytes, (dim - d) * Type::kUnitBytes);
      squares += v * v;
    }
    // The lower limit only keeps a zero vector at zero; real norms are far larger.
    const double norm = __builtin_sqrt(total(squares));
    return static_cast<float>(1.0 / (norm <= 1e-30 ? 1e-30 : norm));
  });
}

double unit_gap(Element element, const void* a, const void* b, float b_scale, int64_t dim,
                float* difference) {
  const float a_scale = unit_scale(element, a, dim);
  if (a_scale != a_scale) return static_cast<double>(a_scale);
  return with_type(element, [&]<class Type>(Type) {
    const auto part = [&](const void* x, int64_t d) {
      return load_some<Type>(static_cast<const char*>(x) + d * Type::kUnitBytes,
                             (dim - d) * Type::kUnitBytes);
    };
    Vec squares{};
    for (int64_t d = 0; d < dim; d += kLanes) {
      const Vec gap = part(a, d) * a_scale - part(b, d) * b_scale;
      squares += gap * gap;
      char* sum = reinterpret_cast<char*>(difference + d);
      const int64_t bytes = (dim - d) * 4;
      store_some<Float32>(sum, load_some<Float32>(sum, bytes) + gap, bytes);
    }
    return __builtin_sqrt(total(squares));
  });
}

// A vocabulary has a hundred thousand terms: sum so many vectors in float32, then add in double.
constexpr int64_t kTermsAtOnce = 64 * kLanes;

// The sum of term(vector at i, number of valid bytes) for i = 0, kLanes ... below count.
template <class Type, class Term>
inline double sum_terms(int64_t count, Term term) {
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kTermsAtOnce) {
    const int64_t end = begin + kTermsAtOnce < count ? begin + kTermsAtOnce : count;
    Vec part{};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) part += term(i, kLanes);
    if (i < end) part += term(i, end - i);
    sum += total(part);
  }
  return sum;
}

template <class Type>
inline Vec part_of(const char* x, int64_t i, int64_t lanes, float behind) {
  if (lanes == kLanes) return Type::load_vec(x + i * Type::kUnitBytes);
  const Vec v = load_some<Type>(x + i * Type::kUnitBytes, lanes * Type::kUnitBytes);
  return lane_index() < static_cast<int32_t>(lanes) ? v : broadcast(behind);
}

double log_sum_exp(Element element, const void* x, int64_t count) {
  return with_type(element, [&]<class Type>(Type) {
    const auto* in = static_cast<const char*>(x);
    Vec largest = broadcast(-kInfinity);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t lanes = count - i < kLanes ? count - i : kLanes;
      const Vec v = part_of<Type>(in, i, lanes, -kInfinity);
      largest = v > largest ? v : largest;
    }
    float top = -kInfinity;
    for (int i = 0; i < kLanes; ++i) top = largest[i] > top ? largest[i] : top;
    const double sum = sum_terms<Type>(count, [&](int64_t i, int64_t lanes) {
      return exp_vec(part_of<Type>(in, i, lanes, -kInfinity) - top);
    });
    return static_cast<double>(top) + __builtin_log(sum);
  });
}

double divergence(Element element, const void* first, double lse_first, const void* now,
                  double lse_now, int64_t count) {
  return with_type(element, [&]<class Type>(Type) {
    const auto* a = static_cast<const char*>(first);
    const auto* b = static_cast<const char*>(now);
    const auto origin = static_cast<float>(lse_first);
    const double sum = sum_terms<Type>(count, [&](int64_t i, int64_t lanes) {
      const Vec x = part_of<Type>(a, i, lanes, -kInfinity);
      const Vec p = exp_vec(x - origin);
      const Vec gap = x - part_of<Type>(b, i, lanes, 0.0f);
      return p > 0.0f ? p * gap : Vec{};
    });
    // The probabilities were computed with the rounded lse.
    return sum * __builtin_exp(static_cast<double>(origin) - lse_first) + (lse_now - lse_first);
  });
}

constexpr StatisticsKernels make_statistics_kernels(const char* name) {
  return {name,       cosine,   merge_errors, kept_errors, external_weights,
          unit_scale, unit_gap, log_sum_exp,  divergence};
}

}  // namespace
}  // namespace blockscope
