// The cases of split_attention, and what every implementation of it must give: shared by the tests
// of the CPU's kernels and of those for GPUs.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {

// Sizes around every tile, panel and chunk of the CPU's and the GPU's kernels.
inline std::vector<CaseShape> case_table() {
  std::vector<CaseShape> cases;
  // Key counts around the tile (64), the panels (8, 16, 32) and the chunk (512).
  for (const int64_t length : {0, 1, 7, 31, 32, 33, 63, 64, 65, 127, 511, 512, 513, 1100}) {
    cases.push_back({.ext_len = {length}});
  }
  for (const int64_t dim : {1, 2, 3, 15, 16, 17, 48, 64, 80, 100, 128, 200, 256}) {
    cases.push_back({.dim = dim, .ext_len = {70}});
  }
  // Row counts around the row blocks (12, 8, 4, 2, 1), and more than one tile of 128 rows.
  for (const int64_t queries : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 32, 70}) {
    cases.push_back({.queries = queries, .internal = queries, .ext_len = {65}});
  }
  cases.push_back({.heads = 8, .kv_heads = 1, .ext_len = {65}});
  cases.push_back({.heads = 3, .kv_heads = 3, .ext_len = {65}});
  cases.push_back({.heads = 12, .kv_heads = 3, .dim = 64, .queries = 32, .internal = 32});
  cases.push_back({.queries = 5, .internal = 9, .ext_len = {20}});
  cases.push_back({.internal = 0, .ext_len = {20}});
  cases.push_back({.ext_len = {0, 5, 700, 64}});
  cases.push_back({.ext_len = {70}, .spare = 0});
  cases.push_back({.dim = 64, .ext_len = {300}, .query_scale = 100.0});
  const std::vector<CaseShape> float_cases = cases;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (CaseShape shape : float_cases) {
      shape.dtype = dtype;
      cases.push_back(shape);
    }
  }
  return cases;
}

// What kernels/ops.h promises for a q of this dtype; `Result` has the members of SplitAttention.
template <class Result>
void expect_matches(const SplitReference& expected, at::ScalarType dtype, const Result& got) {
  const double score = expected.largest_score;
  const Limits lse = {1e-10, 2e-6 * score};
  const Limits parts = {1e-10 * score * score, 2e-5 * score};
  const double rounding = unit_roundoff(dtype);
  const Limits out = {parts.nmse + rounding * rounding, parts.largest + 6.0 * rounding};
  EXPECT_TRUE(close_to(to_doubles(got.lse_external), expected.lse_external, lse));
  EXPECT_TRUE(close_to(to_doubles(got.lse_internal), expected.lse_internal, lse));
  EXPECT_TRUE(close_to(to_doubles(got.external), expected.external, parts));
  EXPECT_TRUE(close_to(to_doubles(got.internal), expected.internal, parts));
  EXPECT_TRUE(close_to(to_doubles(got.out), expected.out, out));
}
template <class Result>
void expect_matches(const AttentionCase& problem, const Result& got) {
  expect_matches(split_reference(problem), problem.q.scalar_type(), got);
}

// NaN in a query stays in its row, NaN in a key in the rows that see it.
template <class Split>
void expect_nan_in_its_rows_alone(at::ScalarType dtype, Split split) {
  AttentionCase problem = make_case({.ext_len = {70}, .dtype = dtype}, 7);
  const SplitAttention clean = split(problem);
  problem.q[0][1][2][5] = NAN;
  const SplitAttention got = split(problem);
  EXPECT_TRUE(got.out[0][1][2].isnan().all().item<bool>());
  EXPECT_TRUE(std::isnan(got.lse_external[0][1][2].item<float>()));
  got.out[0][1][2].zero_();
  clean.out[0][1][2].zero_();
  EXPECT_TRUE(at::equal(got.out, clean.out));
  AttentionCase nan_key = make_case({.ext_len = {1}, .dtype = dtype}, 8);
  nan_key.k_ext[0][0][0][0] = NAN;  // the only key of KV head 0: heads 0 and 1 see nothing else
  const SplitAttention lost = split(nan_key);
  EXPECT_TRUE(lost.lse_external[0].slice(0, 0, 2).isnan().all().item<bool>());
  EXPECT_TRUE(lost.out[0].slice(0, 0, 2).isnan().all().item<bool>());
  EXPECT_FALSE(lost.out[0].slice(0, 2).isnan().any().item<bool>());
}

}  // namespace blockscope::testing
