// gather_attention and unselected_attention against the float64 reference over the chosen keys, and
// against split_attention where a set holds everything.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

SplitAttention split_whole(const AttentionCase& c) {
  return split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale);
}

SourcedAttention gather(const AttentionCase& c, const at::Tensor& index,
                        const at::Tensor& dense = {}, const at::Tensor& residual = {},
                        const at::Tensor& lse = {}) {
  return gather_attention(c.q, c.k_ext, c.v_ext, c.ext_len, index, c.k_in, c.v_in, c.scale, dense,
                          residual, lse);
}

PartialAttention unselected(const AttentionCase& c, const at::Tensor& index) {
  return unselected_attention(c.q, c.k_ext, c.v_ext, c.ext_len, index, c.scale);
}

/// k different positions of every prefix in random order, -1 where a prefix is shorter.
at::Tensor random_sets(const AttentionCase& c, int64_t k, uint64_t seed) {
  SeededRandom random(seed);
  const at::Tensor index =
      at::full({c.q.size(0), c.k_ext.size(1), k}, -1, at::TensorOptions().dtype(at::kInt));
  for (int64_t s = 0; s < index.size(0); ++s) {
    const int64_t length = c.ext_len[s].item<int64_t>();
    for (int64_t h = 0; h < index.size(1); ++h) {
      std::vector<int32_t> all(static_cast<size_t>(length));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
      for (int64_t i = 0; i < std::min(k, length); ++i) {
        std::swap(all[static_cast<size_t>(i)],
                  all[static_cast<size_t>(random.integer(i, length - 1))]);
        index[s][h][i] = all[static_cast<size_t>(i)];
      }
    }
  }
  return index;
}

/// Attention over chosen rows of the prefix: those in the set, or the others.
std::vector<ReferenceRow> reference(const AttentionCase& c, const at::Tensor& index, bool chosen) {
  std::vector<ReferenceRow> rows;
  const int64_t group = c.q.size(1) / c.k_ext.size(1);
  for (int64_t s = 0; s < c.q.size(0); ++s) {
    for (int64_t h = 0; h < c.q.size(1); ++h) {
      const std::vector<double> set = to_doubles(index[s][h / group]);
      const std::set<double> members(set.begin(), set.end());
      std::vector<Row> keys;
      std::vector<Row> values;
      for (int64_t n = 0; n < c.ext_len[s].item<int64_t>(); ++n) {
        if ((members.count(static_cast<double>(n)) > 0) != chosen) continue;
        keys.push_back(to_doubles(c.k_ext[s][h / group][n]));
        values.push_back(to_doubles(c.v_ext[s][h / group][n]));
      }
      for (const Row& q : to_rows(c.q[s][h])) {
        rows.push_back(attention_reference(q, keys, values, c.scale));
      }
    }
  }
  return rows;
}

void expect_near(const at::Tensor& output, const at::Tensor& lse,
                 const std::vector<ReferenceRow>& expected) {
  const std::vector<double> got_lse = to_doubles(lse);
  const std::vector<double> got = to_doubles(output);
  ASSERT_EQ(got_lse.size(), expected.size());
  size_t at = 0;
  for (size_t row = 0; row < expected.size(); ++row) {
    if (std::isinf(expected[row].lse)) {
      EXPECT_EQ(got_lse[row], expected[row].lse);
    } else {
      EXPECT_NEAR(got_lse[row], expected[row].lse, 2e-4) << "row " << row;
    }
    for (const double value : expected[row].output) {
      EXPECT_NEAR(got[at++], value, 2e-4) << "row " << row;
    }
  }
}

std::vector<CaseShape> shapes() {
  std::vector<CaseShape> shapes = {
      {.heads = 6, .kv_heads = 2, .ext_len = {130, 0, 31}},
      {.heads = 4, .kv_heads = 4, .dim = 8, .queries = 1, .internal = 1, .ext_len = {700}},
      {.heads = 8, .kv_heads = 1, .dim = 64, .queries = 20, .internal = 20, .ext_len = {333, 64}}};
  const size_t count = shapes.size();
  for (size_t i = 0; i < count; ++i) {
    shapes.push_back(shapes[i]);
    shapes.back().dtype = i % 2 == 0 ? at::kBFloat16 : at::kHalf;
  }
  return shapes;
}

TEST(GatherAttention, SelectedAndUnselectedEqualTheReferenceOverTheirKeys) {
  uint64_t seed = 1;
  for (const CaseShape& shape : shapes()) {
    for (const int64_t k : {1, 7, 64, 100}) {
      SCOPED_TRACE(::testing::Message() << shape << " k " << k);
      const AttentionCase c = make_case(shape, seed++);
      const at::Tensor index = random_sets(c, k, seed++);
      const SourcedAttention got = gather(c, index);
      const std::vector<ReferenceRow> selected = reference(c, index, true);
      expect_near(got.external, got.lse_external, selected);
      const PartialAttention rest = unselected(c, index);
      expect_near(rest.output, rest.lse, reference(c, index, false));
      const SplitAttention dense = split_whole(c);
      EXPECT_TRUE(at::equal(got.internal, dense.internal));
      EXPECT_TRUE(at::equal(got.lse_internal, dense.lse_internal));
      EXPECT_TRUE(at::equal(got.keys_read, index.ge(0).sum(-1)));
      // The parts of this very step, merged, are the whole attention.
      const SourcedAttention whole = gather(c, index, {}, rest.output, rest.lse);
      EXPECT_TRUE(at::allclose(
          whole.out.to(at::kDouble), dense.out.to(at::kDouble), 1e-6,
          2e-5 + 2 * unit_roundoff(shape.dtype) * dense.out.abs().max().item<double>()));
    }
  }
}

TEST(GatherAttention, ASetOfTheWholePrefixIsBitForBitSplitAttention) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const AttentionCase c =
        make_case({.heads = 6, .kv_heads = 2, .ext_len = {1500, 0, 64, 77}, .dtype = dtype}, 5);
    const SplitAttention dense = split_whole(c);
    for (const int64_t k : {1500, 1700}) {
      const at::Tensor index = random_sets(c, k, 6);
      for (const SourcedAttention& got :
           {gather(c, index), gather(c, index, at::zeros({4}, at::kBool)),
            gather(c, random_sets(c, 3, 7), at::ones({4}, at::kBool))}) {
        EXPECT_TRUE(at::equal(got.out, dense.out));
        EXPECT_TRUE(at::equal(got.external, dense.external));
        EXPECT_TRUE(at::equal(got.lse_external, dense.lse_external));
      }
    }
  }
}

TEST(GatherAttention, OtherKeysAreNotReadAndTheirOrderSaysNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    AttentionCase c = make_case({.heads = 4, .kv_heads = 2, .ext_len = {300}, .dtype = dtype}, 8);
    const at::Tensor index = random_sets(c, 40, 9);
    const SourcedAttention before = gather(c, index);
    for (int64_t h = 0; h < 2; ++h) {
      const at::Tensor others = at::ones({c.k_ext.size(2)}, at::kBool);
      others.index_fill_(0, index[0][h].to(at::kLong), 0);
      for (const at::Tensor& cache : {c.k_ext, c.v_ext}) {
        cache[0][h].masked_fill_(others.unsqueeze(-1), NAN);
      }
    }
    const SourcedAttention after = gather(c, index.flip(-1));
    EXPECT_TRUE(at::equal(after.out, before.out));
    EXPECT_TRUE(at::equal(after.external, before.external));
  }
}

TEST(GatherAttention, ThreadsAndOtherSequencesChangeNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const AttentionCase c =
        make_case({.heads = 4, .kv_heads = 2, .ext_len = {3000, 40}, .dtype = dtype}, 10);
    const at::Tensor index = random_sets(c, 1100, 11);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const SourcedAttention alone = gather(c, index);
    at::set_num_threads(5);
    const SourcedAttention many = gather(c, index);
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(alone.out, many.out));
    AttentionCase first = c;
    for (at::Tensor* tensor :
         {&first.q, &first.k_ext, &first.v_ext, &first.ext_len, &first.k_in, &first.v_in}) {
      *tensor = tensor->narrow(0, 0, 1);
    }
    EXPECT_TRUE(at::equal(gather(first, index.narrow(0, 0, 1)).out, alone.out.narrow(0, 0, 1)));
  }
}

TEST(GatherAttention, AResidualWithoutKeysIsSkipped) {
  const AttentionCase c = make_case({.ext_len = {200}}, 12);
  const at::Tensor index = random_sets(c, 20, 13);
  const SourcedAttention without = gather(c, index);
  const SourcedAttention with =
      gather(c, index, {}, at::full_like(without.external, NAN),
             at::full_like(without.lse_external, -std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(at::equal(with.out, without.out));
}

TEST(GatherAttention, WrongArgumentsThrow) {
  const AttentionCase c = make_case({.ext_len = {30, 9}}, 14);
  const at::Tensor index = random_sets(c, 5, 15);
  const auto with = [&](int64_t s, int64_t j, int32_t value) {
    const at::Tensor changed = index.clone();
    changed[s][0][j] = value;
    return changed;
  };
  EXPECT_THROW(gather(c, with(0, 2, 30)), c10::Error);
  EXPECT_THROW(gather(c, with(1, 2, 9)), c10::Error);
  EXPECT_THROW(gather(c, with(0, 2, -2)), c10::Error);
  EXPECT_THROW(gather(c, with(0, 2, index[0][0][1].item<int32_t>())), c10::Error);
  EXPECT_THROW(gather(c, index.to(at::kLong)), c10::Error);
  EXPECT_THROW(gather(c, index.narrow(1, 0, 1)), c10::Error);
  EXPECT_THROW(gather(c, index, at::ones({1}, at::kBool)), c10::Error);
  EXPECT_THROW(gather(c, index, {}, at::zeros_like(c.q)), c10::Error);
  EXPECT_THROW(unselected(c, with(0, 2, 30)), c10::Error);
}

}  // namespace
}  // namespace blockscope::testing
