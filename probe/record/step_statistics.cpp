#include "probe/record/step_statistics.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace blockscope {
namespace {

// A sum over a vector has this many partial sums: the compiler must not reorder floating point
// additions, so a single one would add number after number.
constexpr int64_t kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Words = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

// Vectors are never arguments or results of functions: how those pass depends on compiler flags.
#define BLOCKSCOPE_LOAD(target, pointer) std::memcpy(&(target), (pointer), sizeof(target))

template <typename Vector>
double sum_of(const Vector& lanes) {
  double sum = 0.0;
  for (int64_t i = 0; i < kLanes; ++i) sum += static_cast<double>(lanes[i]);
  return sum;
}

/// Waking threads costs more than a small model's heads.
template <typename Function>
void for_each_head(const HeadShape& shape, const Function& function) {
  constexpr int64_t kElementsPerTask = 1 << 16;
  const int64_t head = std::max<int64_t>(shape.block * shape.dim, 1);
  at::parallel_for(0, shape.heads, std::max<int64_t>(kElementsPerTask / head, 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t h = begin; h < end; ++h) function(h);
                   });
}

double cosine(const float* a, const float* b, int64_t dim) {
  Doubles dot{};
  Doubles norm_a{};
  Doubles norm_b{};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Floats x;
    Floats y;
    BLOCKSCOPE_LOAD(x, a + d);
    BLOCKSCOPE_LOAD(y, b + d);
    const Doubles x64 = __builtin_convertvector(x, Doubles);
    const Doubles y64 = __builtin_convertvector(y, Doubles);
    dot += x64 * y64;
    norm_a += x64 * x64;
    norm_b += y64 * y64;
  }
  double sums[3] = {sum_of(dot), sum_of(norm_a), sum_of(norm_b)};
  for (; d < dim; ++d) {
    const auto x = static_cast<double>(a[d]);
    const auto y = static_cast<double>(b[d]);
    sums[0] += x * y;
    sums[1] += x * x;
    sums[2] += y * y;
  }
  // Squares of float32 neither overflow nor vanish in double: a zero norm means a zero vector.
  if (sums[1] == 0.0 || sums[2] == 0.0) return 0.0;
  return sums[0] / (std::sqrt(sums[1]) * std::sqrt(sums[2]));
}

/// Weight of the external side in a merge of two log-sum-exps, exact when one side is empty.
float external_weight(float lse_external, float lse_internal) {
  if (lse_external == -std::numeric_limits<float>::infinity()) return 0.0F;
  return 1.0F / (1.0F + std::exp(lse_internal - lse_external));
}

struct MergeRow {
  const float* source;
  const float* external;
  const float* internal;
  float source_weight;
  float external_weight;
};

void add_row_error(const MergeRow& row, int64_t dim, ErrorSums& total) {
  const Words sign_off = Words{} + 0x7fffffff;
  Floats squared{};
  Floats absolute{};
  Floats reference{};
  Floats dot{};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Floats in;
    Floats ext;
    Floats src;
    BLOCKSCOPE_LOAD(in, row.internal + d);
    BLOCKSCOPE_LOAD(ext, row.external + d);
    BLOCKSCOPE_LOAD(src, row.source + d);
    const Floats ref = in + row.external_weight * (ext - in);
    const Floats got = in + row.source_weight * (src - in);
    const Floats error = got - ref;
    squared += error * error;
    absolute += reinterpret_cast<Floats>(reinterpret_cast<Words>(error) & sign_off);
    reference += ref * ref;
    dot += ref * got;
  }
  total.squared += sum_of(squared);
  total.absolute += sum_of(absolute);
  total.reference += sum_of(reference);
  total.dot += sum_of(dot);
  for (; d < dim; ++d) {
    const float ref = row.internal[d] + row.external_weight * (row.external[d] - row.internal[d]);
    const float got = row.internal[d] + row.source_weight * (row.source[d] - row.internal[d]);
    const float error = got - ref;
    total.squared += static_cast<double>(error * error);
    total.absolute += static_cast<double>(std::fabs(error));
    total.reference += static_cast<double>(ref * ref);
    total.dot += static_cast<double>(ref * got);
  }
}

/// Scales x [dim] to unit length, in place.
void normalise(float* x, int64_t dim) {
  Floats squares{};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Floats v;
    BLOCKSCOPE_LOAD(v, x + d);
    squares += v * v;
  }
  double sum = sum_of(squares);
  for (; d < dim; ++d) sum += static_cast<double>(x[d] * x[d]);
  // The floor only keeps a zero vector zero; real norms are far above it.
  const float norm = std::max(static_cast<float>(std::sqrt(sum)), 1e-30F);
  for (d = 0; d < dim; ++d) x[d] /= norm;
}

/// |a - b|_2, and a - b added to `difference` [dim].
double distance(const float* a, const float* b, int64_t dim, float* difference) {
  Floats squares{};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Floats x;
    Floats y;
    Floats sum;
    BLOCKSCOPE_LOAD(x, a + d);
    BLOCKSCOPE_LOAD(y, b + d);
    BLOCKSCOPE_LOAD(sum, difference + d);
    x -= y;
    squares += x * x;
    sum += x;
    std::memcpy(difference + d, &sum, sizeof(sum));
  }
  double total = sum_of(squares);
  for (; d < dim; ++d) {
    const float x = a[d] - b[d];
    total += static_cast<double>(x * x);
    difference[d] += x;
  }
  return std::sqrt(total);
}

double row_kl(const float* p, const float* log_p, const float* log_p_now, int64_t vocab) {
  Doubles kl{};
  int64_t v = 0;
  for (; v + kLanes <= vocab; v += kLanes) {
    Floats weight;
    Floats before;
    Floats now;
    BLOCKSCOPE_LOAD(weight, p + v);
    BLOCKSCOPE_LOAD(before, log_p + v);
    BLOCKSCOPE_LOAD(now, log_p_now + v);
    kl += __builtin_convertvector(weight * (before - now), Doubles);
  }
  double sum = sum_of(kl);
  for (; v < vocab; ++v) sum += static_cast<double>(p[v] * (log_p[v] - log_p_now[v]));
  return sum;
}

#undef BLOCKSCOPE_LOAD

/// Mean of `value(row)` over the rows of a head; those that are NaN left out.
template <typename Value>
float mean_over_block(const HeadShape& shape, int64_t head, Value value) {
  double sum = 0.0;
  int64_t rows = 0;
  for (int64_t row = head * shape.block; row < (head + 1) * shape.block; ++row) {
    const double term = value(row);
    if (std::isnan(term)) continue;
    sum += term;
    ++rows;
  }
  return static_cast<float>(sum / static_cast<double>(rows));  // 0 / 0 of none is NaN
}

}  // namespace

HeadAttention::HeadAttention(const at::Tensor& all_outputs, const at::Tensor& all_lses, int64_t row)
    : outputs(all_outputs.contiguous()),
      lses(all_lses.contiguous()),
      output(outputs.const_data_ptr<float>() + row * outputs.stride(0)),
      lse(lses.const_data_ptr<float>() + row * lses.stride(0)) {}

void mean_similarity(const float* a, const float* b, const HeadShape& shape, float* out) {
  for_each_head(shape, [&](int64_t head) {
    out[head] = mean_over_block(shape, head, [&](int64_t row) {
      return cosine(a + row * shape.dim, b + row * shape.dim, shape.dim);
    });
  });
}

void mean_external_mass(const float* lse_external, const float* lse_internal,
                        const HeadShape& shape, float* out) {
  for (int64_t head = 0; head < shape.heads; ++head) {
    out[head] = mean_over_block(shape, head, [&](int64_t row) {
      return static_cast<double>(external_weight(lse_external[row], lse_internal[row]));
    });
  }
}

std::vector<ErrorSums> reuse_error(const HeadAttention& source, const HeadAttention& external,
                                   const HeadAttention& internal, const HeadShape& shape) {
  std::vector<ErrorSums> sums(static_cast<size_t>(shape.heads));
  for_each_head(shape, [&](int64_t head) {
    for (int64_t row = head * shape.block; row < (head + 1) * shape.block; ++row) {
      const int64_t at = row * shape.dim;
      const bool absent = std::isnan(source.lse[row]) || std::isnan(external.lse[row]);
      if (absent) continue;
      add_row_error({source.output + at, external.output + at, internal.output + at,
                     external_weight(source.lse[row], internal.lse[row]),
                     external_weight(external.lse[row], internal.lse[row])},
                    shape.dim, sums[static_cast<size_t>(head)]);
    }
  });
  return sums;
}

std::vector<float> unit_normalised(const at::Tensor& x, int64_t row) {
  const HeadShape shape{x.size(1), x.size(2), x.size(3)};
  const int64_t stride = x.stride(3);
  std::vector<float> unit(static_cast<size_t>(shape.rows() * shape.dim));
  AT_DISPATCH_SWITCH(x.scalar_type(), "unit_normalised",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       const scalar_t* data = x.const_data_ptr<scalar_t>() + row * x.stride(0);
                       for_each_head(shape, [&](int64_t head) {
                         for (int64_t i = 0; i < shape.block; ++i) {
                           const scalar_t* from = data + head * x.stride(1) + i * x.stride(2);
                           float* to = unit.data() + (head * shape.block + i) * shape.dim;
                           for (int64_t d = 0; d < shape.dim; ++d)
                             to[d] = static_cast<float>(from[d * stride]);
                           normalise(to, shape.dim);
                         }
                       });
                     }));
  return unit;
}

void unit_gaps(const std::vector<float>& a, const std::vector<float>& b, const HeadShape& shape,
               float* gap, float* block_gap) {
  for_each_head(shape, [&](int64_t head) {
    std::vector<float> difference(static_cast<size_t>(shape.dim), 0.0F);
    double sum = 0.0;
    int64_t rows = 0;
    for (int64_t row = head * shape.block; row < (head + 1) * shape.block; ++row) {
      const auto at = static_cast<size_t>(row * shape.dim);
      if (std::isnan(a[at]) || std::isnan(b[at])) continue;
      sum += distance(a.data() + at, b.data() + at, shape.dim, difference.data());
      ++rows;
    }
    const auto block = static_cast<double>(rows);
    gap[head] = static_cast<float>(sum / block);
    double squares = 0.0;
    for (const float x : difference) squares += static_cast<double>(x) * static_cast<double>(x);
    block_gap[head] = static_cast<float>(std::sqrt(squares) / block);
  });
}

FirstPrediction::FirstPrediction(const at::Tensor& logits)
    : log_p(at::log_softmax(logits.to(at::kFloat), -1).contiguous()), p(log_p.exp()) {}

std::vector<float> masked_kl(const FirstPrediction& first, const at::Tensor& logits,
                             const std::vector<bool>& masked) {
  const int64_t vocab = logits.size(-1);
  std::vector<int64_t> rows;
  for (size_t i = 0; i < masked.size(); ++i) {
    if (masked[i]) rows.push_back(static_cast<int64_t>(i));
  }
  std::vector<float> kl(masked.size(), std::numeric_limits<float>::quiet_NaN());
  if (rows.empty()) return kl;
  // Only the rows that are asked for: a large vocabulary's softmax is the cost of this statistic.
  const at::Tensor log_p =
      at::log_softmax(logits.index_select(0, at::tensor(rows, at::kLong)).to(at::kFloat), -1)
          .contiguous();
  const float* now = log_p.const_data_ptr<float>();
  for_each_head({static_cast<int64_t>(rows.size()), 1, vocab}, [&](int64_t i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    kl[static_cast<size_t>(row)] = static_cast<float>(
        row_kl(first.p.const_data_ptr<float>() + row * vocab,
               first.log_p.const_data_ptr<float>() + row * vocab, now + i * vocab, vocab));
  });
  return kl;
}

}  // namespace blockscope
