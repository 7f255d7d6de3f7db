// reuse_attention: equal to split_attention where nothing is reused, the merge with the cached pair
// where something is, rows that are refreshed, and reading no external key it does not need.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/split_cases.h"

namespace blockscope::testing {
namespace {

SplitAttention split_exact(const AttentionCase& problem) {
  return split_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, problem.scale);
}

SourcedAttention reuse(const AttentionCase& problem, const at::Tensor& external,
                       const at::Tensor& lse, const at::Tensor& mask, const at::Tensor& rows = {}) {
  return reuse_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, external, lse, mask, problem.scale, nullptr, rows);
}

at::Tensor mask_of(std::vector<int64_t> flags) { return at::tensor(flags).to(at::kBool); }

void expect_equal(const SourcedAttention& got, const SplitAttention& expected) {
  EXPECT_TRUE(at::equal(got.out, expected.out));
  EXPECT_TRUE(at::equal(got.external, expected.external));
  EXPECT_TRUE(at::equal(got.lse_external, expected.lse_external));
  EXPECT_TRUE(at::equal(got.internal, expected.internal));
  EXPECT_TRUE(at::equal(got.lse_internal, expected.lse_internal));
}

const CaseShape kShape = {.heads = 6, .kv_heads = 2, .ext_len = {90, 0, 600}};

TEST(ReuseAttention, AllFalseMaskIsBitForBitSplitAttention) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CaseShape shape = kShape;
    shape.dtype = dtype;
    const AttentionCase problem = make_case(shape, 1);
    const SourcedAttention got = reuse(problem, {}, {}, mask_of({0, 0, 0, 0, 0, 0}));
    expect_equal(got, split_exact(problem));
    EXPECT_TRUE(at::equal(got.keys_read, at::tensor({90, 90, 0, 0, 600, 600}).view({3, 2})));
  }
}

TEST(ReuseAttention, AFreshCacheGivesSplitAttentionWhateverTheMask) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    CaseShape shape = kShape;
    shape.dtype = dtype;
    const AttentionCase problem = make_case(shape, 2);
    const SplitAttention fresh = split_exact(problem);
    for (const auto& flags : std::vector<std::vector<int64_t>>{
             {1, 1, 1, 1, 1, 1}, {1, 0, 0, 1, 1, 1}, {0, 0, 1, 0, 1, 0}}) {
      expect_equal(reuse(problem, fresh.external, fresh.lse_external, mask_of(flags)), fresh);
    }
  }
}

TEST(ReuseAttention, ReusedHeadsTakeTheCachedPairAndTheOthersAFreshOne) {
  const AttentionCase problem = make_case(kShape, 3);
  const SplitAttention fresh = split_exact(problem);
  SeededRandom random(4);
  const at::Tensor external = random_tensor(fresh.external.sizes(), at::kFloat, random);
  const at::Tensor lse = random_tensor(fresh.lse_external.sizes(), at::kFloat, random, 5.0);
  const SourcedAttention got = reuse(problem, external, lse, mask_of({0, 1, 0, 0, 0, 1}));
  const MergedAttention merged =
      merge_attention({external, fresh.internal}, {lse, fresh.lse_internal});
  for (const int64_t head : {0, 2, 3, 4}) {
    EXPECT_TRUE(at::equal(got.out.select(1, head), fresh.out.select(1, head)));
    EXPECT_TRUE(at::equal(got.external.select(1, head), fresh.external.select(1, head)));
  }
  for (const int64_t head : {1, 5}) {
    EXPECT_TRUE(at::equal(got.out.select(1, head), merged.out.select(1, head)));
    EXPECT_TRUE(at::equal(got.external.select(1, head), external.select(1, head)));
    EXPECT_TRUE(at::equal(got.lse_external.select(1, head), lse.select(1, head)));
  }
  EXPECT_TRUE(at::equal(got.internal, fresh.internal));
}

TEST(ReuseAttention, APrefixIsReadUnlessAllHeadsOfItsGroupReuse) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    CaseShape shape = kShape;
    shape.dtype = dtype;
    AttentionCase problem = make_case(shape, 5);
    const SplitAttention fresh = split_exact(problem);
    // KV head 0 serves heads 0-2, KV head 1 heads 3-5; sequence 2 has a mask of its own.
    const at::Tensor mask =
        at::tensor({1, 1, 1, 1, 0, 1, /**/ 1, 1, 1, 1, 1, 1, /**/ 0, 1, 1, 1, 1, 1})
            .view({3, 6})
            .to(at::kBool);
    // Keys that must not be read are poisoned.
    problem.k_ext[0][0].fill_(NAN);
    problem.v_ext[0][0].fill_(NAN);
    problem.k_ext[2][1].fill_(NAN);
    problem.v_ext[2][1].fill_(NAN);
    const SourcedAttention got = reuse(problem, fresh.external, fresh.lse_external, mask);
    expect_equal(got, fresh);
    EXPECT_TRUE(at::equal(got.keys_read, at::tensor({0, 90, 0, 0, 600, 0}).view({3, 2})));
  }
}

TEST(ReuseAttention, ACacheIsNeededOnlyIfSomeHeadReuses) {
  const AttentionCase problem = make_case(kShape, 6);
  const SplitAttention fresh = split_exact(problem);
  const at::Tensor one = mask_of({0, 0, 0, 0, 0, 1});
  EXPECT_THROW(reuse(problem, {}, fresh.lse_external, one), c10::Error);
  EXPECT_THROW(reuse(problem, fresh.external, {}, one), c10::Error);
  EXPECT_THROW(reuse(problem, fresh.external.to(at::kDouble), fresh.lse_external, one), c10::Error);
  EXPECT_THROW(reuse(problem, fresh.external, fresh.lse_external.slice(2, 1), one), c10::Error);
  EXPECT_THROW(reuse(problem, fresh.external, fresh.lse_external, mask_of({1, 1})), c10::Error);
  EXPECT_THROW(reuse(problem, fresh.external, fresh.lse_external, one.to(at::kInt)), c10::Error);
}

/// [S, T]: the rows of each sequence.
at::Tensor rows_of(const AttentionCase& problem, const std::vector<std::vector<int64_t>>& rows) {
  at::Tensor flags = at::zeros({problem.q.size(0), problem.q.size(2)}, at::kBool);
  for (size_t s = 0; s < rows.size(); ++s) {
    for (const int64_t t : rows[s]) flags[static_cast<int64_t>(s)][t] = true;
  }
  return flags;
}

at::Tensor random_flags(at::IntArrayRef sizes, SeededRandom& random) {
  const double above = std::vector<double>{-9.0, -0.5, 0.5, 9.0}[random.next() % 4];
  return random_tensor(sizes, at::kDouble, random) > above;
}

TEST(ReuseAttention, RefreshedRowsEqualTheFloat64Reference) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (uint64_t seed = 20; seed < 40; ++seed) {
      SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << " seed " << seed);
      SeededRandom random(seed);
      CaseShape shape = kShape;
      shape.dtype = dtype;
      shape.queries = 5;
      if (seed % 2 == 1) shape.heads = 2;  // a KV head for each
      AttentionCase problem = make_case(shape, seed);
      const at::Tensor mask = random_flags({3, shape.heads}, random);
      const at::Tensor rows = random_flags({3, 5}, random);
      const at::Tensor taken = mask.unsqueeze(-1).logical_and(rows.logical_not().unsqueeze(1));
      at::Tensor external = random_tensor(problem.q.sizes(), at::kFloat, random);
      at::Tensor lse = random_tensor(problem.q.sizes().slice(0, 3), at::kFloat, random, 3.0);
      const SplitReference expected = reference_with(problem, external, lse, taken);
      // Neither the pairs of fresh rows nor the prefix of a KV head without one may be read.
      external.masked_fill_(taken.logical_not().unsqueeze(-1), NAN);
      lse.masked_fill_(taken.logical_not(), NAN);
      const at::Tensor unread = taken.reshape({3, 2, -1}).all(-1);
      problem.k_ext.masked_fill_(unread.view({3, 2, 1, 1}), NAN);
      problem.v_ext.masked_fill_(unread.view({3, 2, 1, 1}), NAN);
      const SourcedAttention got = reuse(problem, external, lse, mask, rows);
      expect_matches(expected, dtype, got);
      EXPECT_TRUE(at::equal(got.keys_read, problem.ext_len.view({3, 1}) * unread.logical_not()));
    }
  }
}

TEST(ReuseAttention, ARefreshedRowIsBitForBitThatOfSplitAttentionWhateverTheOthers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const AttentionCase problem = make_case({.heads = 8,  // 132 rows of a KV head: two tiles
                                             .kv_heads = 2,
                                             .queries = 33,
                                             .internal = 33,
                                             .ext_len = {700, 90},
                                             .dtype = dtype},
                                            7);
    const SplitAttention fresh = split_exact(problem);
    SeededRandom random(8);
    const at::Tensor external = random_tensor(fresh.external.sizes(), at::kFloat, random);
    const at::Tensor lse = random_tensor(fresh.lse_external.sizes(), at::kFloat, random, 5.0);
    std::vector<int64_t> many(32);
    std::iota(many.begin(), many.end(), int64_t{1});
    for (const at::Tensor& mask : {at::ones({8}, at::kBool), mask_of({1, 1, 0, 1, 1, 1, 1, 1})}) {
      const SourcedAttention kept = reuse(problem, external, lse, mask);
      const at::Tensor heads = mask.view({1, 8, 1});
      for (const auto& sets : std::vector<std::vector<std::vector<int64_t>>>{
               {{0}, {}}, {{32}, {5, 6}}, {{3, 17}, {32}}, {many, {0}}, {{1, 2, 9, 31}, many}}) {
        SCOPED_TRACE(::testing::PrintToString(sets));
        const at::Tensor rows = rows_of(problem, sets);
        const at::Tensor taken = heads.logical_and(rows.logical_not().unsqueeze(1)).unsqueeze(-1);
        const SourcedAttention got = reuse(problem, external, lse, mask, rows);
        EXPECT_TRUE(at::equal(got.out, at::where(taken, kept.out, fresh.out)));
        EXPECT_TRUE(at::equal(got.external, at::where(taken, external, fresh.external)));
        EXPECT_TRUE(
            at::equal(got.lse_external, at::where(taken.squeeze(-1), lse, fresh.lse_external)));
        EXPECT_TRUE(at::equal(got.internal, fresh.internal));
        EXPECT_TRUE(at::equal(got.lse_internal, fresh.lse_internal));
      }
    }
  }
}

TEST(ReuseAttention, AllRowsNeedNoCacheAndNoRowsChangeNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CaseShape shape = kShape;
    shape.dtype = dtype;
    const AttentionCase problem = make_case(shape, 9);
    const SplitAttention fresh = split_exact(problem);
    const at::Tensor all = at::ones({6}, at::kBool);
    const SourcedAttention whole = reuse(problem, {}, {}, all, at::ones({3, 4}, at::kBool));
    expect_equal(whole, fresh);
    EXPECT_TRUE(at::equal(whole.keys_read, at::tensor({90, 90, 0, 0, 600, 600}).view({3, 2})));
    const at::Tensor external = fresh.external + 1.0;
    const SourcedAttention before = reuse(problem, external, fresh.lse_external, all);
    const SourcedAttention after =
        reuse(problem, external, fresh.lse_external, all, at::zeros({3, 4}, at::kBool));
    expect_equal(after, before);
    EXPECT_TRUE(at::equal(after.keys_read, at::zeros({3, 2}, at::kLong)));
  }
}

TEST(ReuseAttention, RowsOfAnotherKindAreRefused) {
  const AttentionCase problem = make_case(kShape, 10);
  const SplitAttention fresh = split_exact(problem);
  const at::Tensor all = at::ones({6}, at::kBool);
  const auto with = [&](const at::Tensor& rows) {
    reuse(problem, fresh.external, fresh.lse_external, all, rows);
  };
  with(at::ones({3, 4}, at::kBool));
  EXPECT_THROW(with(at::ones({4}, at::kBool)), c10::Error);
  EXPECT_THROW(with(at::ones({3, 5}, at::kBool)), c10::Error);
  EXPECT_THROW(with(at::ones({1, 4}, at::kBool)), c10::Error);
  EXPECT_THROW(with(at::ones({3, 4}, at::kInt)), c10::Error);
  // A row that takes the pair needs one.
  at::Tensor rows = at::ones({3, 4}, at::kBool);
  rows[1][3] = false;
  EXPECT_THROW(reuse(problem, {}, fresh.lse_external, all, rows), c10::Error);
  EXPECT_THROW(reuse(problem, fresh.external, {}, all, rows), c10::Error);
}

#if defined(BLOCKSCOPE_EMULATED_OPERATORS)
TEST(ReuseAttention, OnlyTheRowsThatReadArePaidFor) {
  const AttentionCase problem = make_case({.heads = 8,  // 256 rows of a KV head: two blocks
                                           .kv_heads = 2,
                                           .dim = 64,
                                           .queries = 64,
                                           .internal = 64,
                                           .ext_len = {600, 90},
                                           .dtype = at::kBFloat16},
                                          11);
  const SplitAttention fresh = split_exact(problem);
  const auto copied = [&](const at::Tensor& rows) {
    emulated::counters() = {};
    reuse(problem, fresh.external, fresh.lse_external, at::ones({8}, at::kBool), rows);
    return emulated::counters().copied_bytes;
  };
  // Of two KV heads of sequence 0: every key and value once, and the rows' queries for each chunk.
  const int64_t extra = copied(rows_of(problem, {{7, 60}, {}})) - copied({});
  EXPECT_EQ(extra, 2 * (2 * 600 + 3 * 4 * 2) * 64 * 2);
}
#endif

}  // namespace
}  // namespace blockscope::testing
