// prefill_attention against the float64 reference, for causal and block-causal masks.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

struct PrefillShape {
  int64_t heads, kv_heads, dim, queries, keys, block_length, query_start;
  std::vector<int64_t> len;
  at::ScalarType dtype = at::kFloat;
};

struct PrefillCase {
  at::Tensor q, k, v, len;
  double scale = 0.3;
};

PrefillCase make_prefill(const PrefillShape& shape, uint64_t seed) {
  SeededRandom random(seed);
  const auto sequences = static_cast<int64_t>(shape.len.size());
  PrefillCase result;
  result.q = random_tensor({sequences, shape.heads, shape.queries, shape.dim}, shape.dtype, random);
  result.k = random_tensor({sequences, shape.kv_heads, shape.keys, shape.dim}, shape.dtype, random);
  result.v = random_tensor({sequences, shape.kv_heads, shape.keys, shape.dim}, shape.dtype, random);
  result.len = at::tensor(shape.len, at::kLong);
  for (int64_t s = 0; s < sequences; ++s) {
    result.k[s].slice(1, shape.len[static_cast<size_t>(s)]).fill_(NAN);
    result.v[s].slice(1, shape.len[static_cast<size_t>(s)]).fill_(NAN);
  }
  return result;
}

std::vector<double> prefill_reference(const PrefillShape& shape, const PrefillCase& problem) {
  std::vector<double> out;
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t s = 0; s < problem.q.size(0); ++s) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const std::vector<Row> keys = to_rows(problem.k[s][h / group]);
      const std::vector<Row> values = to_rows(problem.v[s][h / group]);
      const std::vector<Row> queries = to_rows(problem.q[s][h]);
      for (int64_t t = 0; t < shape.queries; ++t) {
        std::vector<Row> seen_keys;
        std::vector<Row> seen_values;
        const int64_t block = (shape.query_start + t) / shape.block_length;
        for (int64_t j = 0; j < shape.len[static_cast<size_t>(s)]; ++j) {
          if (j / shape.block_length > block) continue;  // a later block
          seen_keys.push_back(keys[static_cast<size_t>(j)]);
          seen_values.push_back(values[static_cast<size_t>(j)]);
        }
        append(out, attention_reference(queries[static_cast<size_t>(t)], seen_keys, seen_values,
                                        problem.scale)
                        .output);
      }
    }
  }
  return out;
}

at::Tensor prefill(const PrefillShape& shape, const PrefillCase& problem) {
  return prefill_attention(problem.q, problem.k, problem.v, problem.len, shape.block_length,
                           problem.scale, shape.query_start);
}

TEST(PrefillAttention, EveryMaskEqualsTheFloat64Reference) {
  std::vector<PrefillShape> shapes = {
      {4, 2, 48, 1, 1, 1, 0, {1}},          {4, 2, 48, 65, 65, 1, 0, {65}},
      {4, 2, 48, 130, 130, 1, 0, {130}},    {6, 2, 48, 100, 100, 8, 0, {100}},
      {4, 2, 17, 96, 96, 32, 0, {96}},      {3, 1, 64, 70, 70, 32, 0, {70}},
      {8, 1, 16, 40, 40, 16, 0, {40}},      {4, 2, 48, 64, 64, 4, 0, {64, 10, 0, 33}},
      {4, 2, 48, 20, 90, 1, 70, {90}},      {4, 2, 48, 20, 90, 8, 64, {84}},
      {4, 2, 48, 40, 40, 1000, 0, {40}},    {2, 2, 128, 3, 3, 2, 0, {3}},
      {130, 1, 8, 3, 3, 1, 0, {3}},         {4, 2, 64, 200, 260, 8, 56, {256}},
      {8, 2, 128, 70, 70, 16, 0, {70, 33}}, {4, 1, 200, 40, 90, 8, 48, {90}},
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    uint64_t seed = 1;
    for (PrefillShape shape : shapes) {
      shape.dtype = dtype;
      SCOPED_TRACE(::testing::Message() << "shape " << seed << " " << c10::toString(dtype));
      const PrefillCase problem = make_prefill(shape, seed++);
      const at::Tensor got = prefill(shape, problem);
      ASSERT_EQ(got.scalar_type(), dtype);
      const double rounding = unit_roundoff(dtype);
      EXPECT_TRUE(close_to(to_doubles(got), prefill_reference(shape, problem),
                           {1e-11 + rounding * rounding, 1e-5 + 6.0 * rounding}));
    }
  }
}

TEST(PrefillAttention, RowsThatSeeNoKeyAreZero) {
  const PrefillShape shape = {4, 2, 8, 5, 5, 1, 0, {0}};
  const at::Tensor got = prefill(shape, make_prefill(shape, 1));
  EXPECT_TRUE(at::equal(got, at::zeros_like(got)));
}

TEST(PrefillAttention, LaterKeysChangeNothingBeforeTheirBlock) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const PrefillShape shape = {4, 2, 48, 80, 80, 8, 0, {80}, dtype};
    PrefillCase problem = make_prefill(shape, 2);
    const at::Tensor before = prefill(shape, problem);
    problem.k.slice(2, 40).mul_(-3.0);
    problem.v.slice(2, 40).add_(1.0);
    const at::Tensor after = prefill(shape, problem);
    EXPECT_TRUE(at::equal(before.slice(2, 0, 40), after.slice(2, 0, 40)));
    EXPECT_FALSE(at::equal(before.slice(2, 40), after.slice(2, 40)));
  }
}

TEST(PrefillAttention, ChunksAndThreadsGiveTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    PrefillShape shape = {4, 2, 48, 96, 96, 16, 0, {96}, dtype};
    const PrefillCase whole = make_prefill(shape, 3);
    const at::Tensor expected = prefill(shape, whole);
    const int threads = at::get_num_threads();
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      for (const int64_t start : {0, 16, 48}) {
        PrefillCase part = whole;
        part.q = whole.q.slice(2, start);
        shape.query_start = start;
        EXPECT_TRUE(at::equal(prefill(shape, part), expected.slice(2, start))) << start;
      }
    }
    at::set_num_threads(threads);
  }
}

TEST(PrefillAttention, WrongArgumentsThrow) {
  const PrefillShape shape = {4, 2, 8, 5, 5, 1, 0, {5}};
  const PrefillCase c = make_prefill(shape, 4);
  EXPECT_THROW(prefill_attention(c.q, c.k, c.v, c.len, 0, 1.0), c10::Error);
  EXPECT_THROW(prefill_attention(c.q, c.k, c.v, c.len, 1, 1.0, -1), c10::Error);
  EXPECT_THROW(prefill_attention(c.q, c.k, c.v, c.len + 1, 1, 1.0), c10::Error);
  EXPECT_THROW(prefill_attention(c.q, c.k, c.v.slice(2, 1), c.len, 1, 1.0), c10::Error);
}

bool any_nan(const at::Tensor& values) { return values.isnan().any().item<bool>(); }

TEST(PrefillAttention, NaNGoesWhereTheHeaderSaysItGoes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const PrefillShape shape{4, 2, 16, 300, 300, 4, 0, {300}, dtype};
    const PrefillCase clean = make_prefill(shape, 90);
    const at::Tensor expected = prefill(shape, clean);
    const int64_t first_that_sees = 40 / 4 * 4;  // the first row of key 40's block
    {
      PrefillCase nan_query = clean;
      nan_query.q = clean.q.clone();
      nan_query.q[0][1][40][3] = NAN;
      at::Tensor got = prefill(shape, nan_query);
      EXPECT_TRUE(got[0][1][40].isnan().all().item<bool>());
      got[0][1][40] = expected[0][1][40];
      EXPECT_TRUE(at::equal(got, expected));
    }
    {
      PrefillCase nan_key = clean;
      nan_key.k = clean.k.clone();
      nan_key.k[0][0][40][3] = NAN;  // of query heads 0 and 1
      const at::Tensor got = prefill(shape, nan_key);
      EXPECT_TRUE(got[0].slice(0, 0, 2).slice(1, first_that_sees).isnan().all().item<bool>());
      EXPECT_TRUE(at::equal(got[0].slice(0, 0, 2).slice(1, 0, first_that_sees),
                            expected[0].slice(0, 0, 2).slice(1, 0, first_that_sees)));
      EXPECT_TRUE(at::equal(got[0].slice(0, 2), expected[0].slice(0, 2)));
    }
    for (const float bad : {NAN, INFINITY}) {
      PrefillCase bad_value = clean;
      bad_value.v = clean.v.clone();
      bad_value.v[0][0][200][3] = bad;
      const at::Tensor got = prefill(shape, bad_value);
      const at::Tensor channel = got[0].slice(0, 0, 2).select(-1, 3);
      EXPECT_FALSE(channel.slice(1, 200).isfinite().any().item<bool>());
      // 64 tokens of two heads walk the keys together: those before 192 never read key 200.
      EXPECT_FALSE(any_nan(channel.slice(1, 0, 192)));
      EXPECT_FALSE(any_nan(got[0].slice(0, 0, 2).slice(-1, 0, 3)));
      EXPECT_TRUE(at::equal(got[0].slice(0, 2), expected[0].slice(0, 2)));
    }
  }
}

}  // namespace
}  // namespace blockscope::testing
