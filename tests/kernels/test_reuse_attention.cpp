// reuse_attention: equal to split_attention where nothing is reused, the merge with the cached pair
// where something is, and reading no external key it does not need.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

SplitAttention split_exact(const AttentionCase& problem) {
  return split_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, problem.scale);
}

SourcedAttention reuse(const AttentionCase& problem, const at::Tensor& external,
                       const at::Tensor& lse, const at::Tensor& mask) {
  return reuse_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, external, lse, mask, problem.scale);
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

}  // namespace
}  // namespace blockscope::testing
