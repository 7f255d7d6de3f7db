// Random attention problems as tensors, and their float64 solution.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/reference.h"
#include "tests/support/seed.h"

namespace blockscope::testing {

struct CaseShape {
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t dim = 48;
  int64_t queries = 4;   // T
  int64_t internal = 4;  // T_in
  std::vector<int64_t> ext_len = {100};
  int64_t spare = 3;  // capacity after the longest ext_len, filled with NaN
  at::ScalarType dtype = at::kFloat;
  double query_scale = 1.0;  // larger: more extreme scores
};

inline std::ostream& operator<<(std::ostream& out, const CaseShape& shape) {
  out << "H" << shape.heads << " K" << shape.kv_heads << " D" << shape.dim << " T" << shape.queries
      << " Tin" << shape.internal << " " << c10::toString(shape.dtype) << " q*" << shape.query_scale
      << " ext_len";
  for (const int64_t length : shape.ext_len) out << " " << length;
  return out;
}

struct AttentionCase {
  at::Tensor q;        // [S, H, T, D]
  at::Tensor k_ext;    // [S, K, N, D], NaN after ext_len
  at::Tensor v_ext;    // [S, K, N, D], NaN after ext_len
  at::Tensor ext_len;  // [S]
  at::Tensor k_in;     // [S, K, T_in, D]
  at::Tensor v_in;     // [S, K, T_in, D]
  double scale = 1.0;
};

inline at::Tensor random_tensor(at::IntArrayRef sizes, at::ScalarType dtype, SeededRandom& random,
                                double factor = 1.0) {
  at::Tensor tensor = at::empty(sizes, at::kDouble);
  double* data = tensor.mutable_data_ptr<double>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = random.normal() * factor;
  return tensor.to(dtype);
}

inline AttentionCase make_case(const CaseShape& shape, uint64_t seed) {
  SeededRandom random(seed);
  const auto sequences = static_cast<int64_t>(shape.ext_len.size());
  int64_t capacity = shape.spare;
  for (const int64_t length : shape.ext_len) capacity = std::max(capacity, length + shape.spare);
  const std::vector<int64_t> external = {sequences, shape.kv_heads, capacity, shape.dim};
  const std::vector<int64_t> internal = {sequences, shape.kv_heads, shape.internal, shape.dim};
  AttentionCase result;
  result.q = random_tensor({sequences, shape.heads, shape.queries, shape.dim}, shape.dtype, random,
                           shape.query_scale);
  result.k_ext = random_tensor(external, shape.dtype, random);
  result.v_ext = random_tensor(external, shape.dtype, random);
  result.k_in = random_tensor(internal, shape.dtype, random);
  result.v_in = random_tensor(internal, shape.dtype, random);
  result.ext_len = at::tensor(shape.ext_len, at::kLong);
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t length = shape.ext_len[static_cast<size_t>(s)];
    result.k_ext[s].slice(1, length).fill_(std::numeric_limits<double>::quiet_NaN());
    result.v_ext[s].slice(1, length).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  result.scale = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  return result;
}

inline std::vector<double> to_doubles(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

// Rows of a [n, dim] tensor.
inline std::vector<Row> to_rows(const at::Tensor& matrix) {
  std::vector<Row> rows;
  for (int64_t i = 0; i < matrix.size(0); ++i) rows.push_back(to_doubles(matrix[i]));
  return rows;
}

struct SplitReference {
  std::vector<double> out, external, lse_external, internal, lse_internal;
  double largest_score = 1.0;  // at least 1
};

inline void append(std::vector<double>& target, const Row& row) {
  target.insert(target.end(), row.begin(), row.end());
}

inline SplitReference split_reference(const AttentionCase& problem) {
  SplitReference result;
  const int64_t group = problem.q.size(1) / problem.k_ext.size(1);
  for (int64_t s = 0; s < problem.q.size(0); ++s) {
    const int64_t length = problem.ext_len[s].item<int64_t>();
    for (int64_t h = 0; h < problem.q.size(1); ++h) {
      const auto external_keys = to_rows(problem.k_ext[s][h / group].slice(0, 0, length));
      const auto external_values = to_rows(problem.v_ext[s][h / group].slice(0, 0, length));
      const auto internal_keys = to_rows(problem.k_in[s][h / group]);
      const auto internal_values = to_rows(problem.v_in[s][h / group]);
      for (const Row& q : to_rows(problem.q[s][h])) {
        const ReferenceRow external =
            attention_reference(q, external_keys, external_values, problem.scale);
        const ReferenceRow internal =
            attention_reference(q, internal_keys, internal_values, problem.scale);
        const ReferenceRow all = merge_reference({external, internal});
        append(result.out, all.output);
        append(result.external, external.output);
        append(result.internal, internal.output);
        result.lse_external.push_back(external.lse);
        result.lse_internal.push_back(internal.lse);
        for (const double lse : {external.lse, internal.lse}) {
          if (std::isfinite(lse)) {
            result.largest_score = std::max(result.largest_score, std::abs(lse));
          }
        }
      }
    }
  }
  return result;
}

// The solution in float64 where `taken` [S, H, T] has the rows with the cached pair.
inline SplitReference reference_with(const AttentionCase& problem, const at::Tensor& external,
                                     const at::Tensor& lse, const at::Tensor& taken) {
  SplitReference result = split_reference(problem);
  const std::vector<double> outputs = to_doubles(external);
  const std::vector<double> lses = to_doubles(lse);
  const std::vector<double> flags = to_doubles(taken);
  const auto dim = static_cast<std::ptrdiff_t>(problem.q.size(3));
  for (size_t row = 0; row < flags.size(); ++row) {
    if (flags[row] == 0.0) continue;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * dim;
    const auto part = [&](const std::vector<double>& values, double of) {
      return ReferenceRow{{values.begin() + at, values.begin() + at + dim}, of};
    };
    const Row all =
        merge_reference({part(outputs, lses[row]), part(result.internal, result.lse_internal[row])})
            .output;
    std::copy_n(outputs.begin() + at, dim, result.external.begin() + at);
    std::copy_n(all.begin(), dim, result.out.begin() + at);
    result.lse_external[row] = lses[row];
  }
  return result;
}

// Relative rounding of the output dtype.
inline double unit_roundoff(at::ScalarType dtype) {
  if (dtype == at::kFloat) return 0x1.0p-24;
  return dtype == at::kHalf ? 0x1.0p-11 : 0x1.0p-8;
}

}  // namespace blockscope::testing
