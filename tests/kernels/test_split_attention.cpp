// split_attention against the float64 reference, on every instruction set of this machine, and the
// properties that hold whatever the numbers are.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "kernels/cpu/split_attention_cpu.h"
#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/split_cases.h"

namespace blockscope::testing {
namespace {

SplitAttention split(const AttentionCase& problem) {
  return split_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, problem.scale);
}

int64_t num_variants() {
  int64_t count = 0;
  available_tile_kernels(&count);
  return count;
}

class SplitAttentionOn : public ::testing::TestWithParam<int64_t> {};

TEST_P(SplitAttentionOn, EveryCaseEqualsTheFloat64Reference) {
  int64_t count = 0;
  const TileKernels* const* variants = available_tile_kernels(&count);
  const TileKernels& kernels = *variants[GetParam()];
  uint64_t seed = 1;
  for (const CaseShape& shape : case_table()) {
    SCOPED_TRACE(::testing::Message() << kernels.name << " " << shape << " seed " << seed);
    const AttentionCase problem = make_case(shape, seed++);
    AttentionSizes sizes =
        check_attention("test", problem.q, "k", problem.k_ext, "v", &problem.v_ext);
    expect_matches(
        problem, split_attention_cpu(kernels, sizes, problem.q, problem.k_ext, problem.v_ext,
                                     shape.ext_len, problem.k_in, problem.v_in, {}, problem.scale));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSet, SplitAttentionOn,
                         ::testing::Range<int64_t>(0, num_variants()));

TEST(SplitAttention, EmptyPrefixGivesZeroMinusInfinityAndExactlyTheInternalPart) {
  const SplitAttention got = split(make_case({.ext_len = {0, 0}}, 1));
  EXPECT_TRUE(at::equal(got.external, at::zeros_like(got.external)));
  EXPECT_TRUE(got.lse_external.eq(-std::numeric_limits<float>::infinity()).all().item<bool>());
  EXPECT_TRUE(at::equal(got.out, got.internal));
}

TEST(SplitAttention, OutIsBitForBitTheMergeOfItsParts) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const SplitAttention got = split(make_case({.ext_len = {700, 3, 0}, .dtype = dtype}, 2));
    const MergedAttention merged =
        merge_attention({got.external, got.internal}, {got.lse_external, got.lse_internal});
    EXPECT_TRUE(at::equal(got.out, merged.out.to(dtype)));
  }
}

TEST(SplitAttention, AnySplitOfTheKeysEqualsUnsplitAttention) {
  const AttentionCase whole = make_case({.internal = 130, .ext_len = {0}, .spare = 0}, 3);
  const SplitAttention unsplit = split(whole);
  for (const int64_t cut : {1, 17, 64, 65, 129, 130}) {
    AttentionCase parts = whole;
    parts.k_ext = whole.k_in.slice(2, 0, cut);
    parts.v_ext = whole.v_in.slice(2, 0, cut);
    parts.ext_len = at::tensor({cut}, at::kLong);
    parts.k_in = whole.k_in.slice(2, cut);
    parts.v_in = whole.v_in.slice(2, cut);
    const std::vector<double> out = to_doubles(split(parts).out);
    EXPECT_TRUE(close_to(out, to_doubles(unsplit.out), {1e-12, 2e-6})) << "cut " << cut;
  }
}

TEST(SplitAttention, ResultsDoNotDependOnThreadsOrOtherSequences) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const AttentionCase batch = make_case(
        {.heads = 6, .queries = 16, .internal = 16, .ext_len = {2000, 64, 700}, .dtype = dtype}, 4);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const SplitAttention alone = split(batch);
    for (const int count : {2, 3, 7}) {
      at::set_num_threads(count);
      const SplitAttention again = split(batch);
      EXPECT_TRUE(at::equal(alone.out, again.out)) << count << " threads";
      EXPECT_TRUE(at::equal(alone.lse_external, again.lse_external)) << count << " threads";
    }
    at::set_num_threads(threads);
    for (int64_t s = 0; s < 3; ++s) {
      AttentionCase one = batch;
      one.q = batch.q.slice(0, s, s + 1);
      one.k_ext = batch.k_ext.slice(0, s, s + 1);
      one.v_ext = batch.v_ext.slice(0, s, s + 1);
      one.k_in = batch.k_in.slice(0, s, s + 1);
      one.v_in = batch.v_in.slice(0, s, s + 1);
      one.ext_len = batch.ext_len.slice(0, s, s + 1);
      EXPECT_TRUE(at::equal(split(one).out[0], alone.out[s])) << "sequence " << s;
    }
  }
}

TEST(SplitAttention, StridedViewsOfALargerCacheGiveTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionCase plain = make_case({.dim = 20, .ext_len = {90}, .dtype = dtype}, 5);
    AttentionCase strided = plain;
    // [S, N, K, D + 7] storage, seen as [S, K, N, D]; NaN in everything that must not be read.
    const auto embed = [](const at::Tensor& tensor) {
      at::Tensor storage =
          at::full({tensor.size(0), tensor.size(2) + 5, tensor.size(1), tensor.size(3) + 7}, NAN,
                   tensor.options());
      at::Tensor view = storage.permute({0, 2, 1, 3})
                            .slice(2, 2, 2 + tensor.size(2))
                            .slice(3, 3, 3 + tensor.size(3));
      view.copy_(tensor);
      return view;
    };
    strided.q = embed(plain.q);
    strided.k_ext = embed(plain.k_ext);
    strided.v_ext = embed(plain.v_ext);
    strided.k_in = embed(plain.k_in);
    strided.v_in = embed(plain.v_in);
    EXPECT_TRUE(at::equal(split(plain).out, split(strided).out));
    EXPECT_TRUE(split(strided).out.transpose(1, 2).is_contiguous()) << "a token's heads together";
  }
}

TEST(SplitAttention, ScoresOfTenThousandNeitherOverflowNorVanish) {
  AttentionCase problem = make_case({.heads = 1,
                                     .kv_heads = 1,
                                     .dim = 1,
                                     .queries = 2,
                                     .internal = 2,
                                     .ext_len = {2},
                                     .spare = 0},
                                    6);
  problem.scale = 1.0;
  problem.q = at::tensor({1.0f, -1.0f}).view({1, 1, 2, 1});
  problem.k_ext = at::tensor({1e4f, 1e4f}).view({1, 1, 2, 1});
  problem.v_ext = at::tensor({2.0f, 4.0f}).view({1, 1, 2, 1});
  problem.k_in = at::tensor({-1e4f, -1e4f}).view({1, 1, 2, 1});
  problem.v_in = at::tensor({10.0f, 30.0f}).view({1, 1, 2, 1});
  const SplitAttention got = split(problem);
  EXPECT_TRUE(at::equal(got.external.flatten(), at::tensor({3.0f, 3.0f})));
  EXPECT_TRUE(at::equal(got.internal.flatten(), at::tensor({20.0f, 20.0f})));
  EXPECT_TRUE(at::equal(got.out.flatten(), at::tensor({3.0f, 20.0f})));
  EXPECT_FLOAT_EQ(got.lse_external.flatten()[0].item<float>(), 1e4f + std::log(2.0f));
  EXPECT_FLOAT_EQ(got.lse_external.flatten()[1].item<float>(), -1e4f + std::log(2.0f));
}

TEST(SplitAttention, NaNStaysInTheRowsThatSeeIt) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    expect_nan_in_its_rows_alone(dtype, [](const AttentionCase& c) { return split(c); });
  }
}

TEST(SplitAttention, WrongArgumentsAreNamed) {
  const AttentionCase good = make_case({.ext_len = {10}}, 9);
  const auto message = [](const AttentionCase& problem) -> std::string {
    try {
      split(problem);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  const auto expect = [&](const char* text, auto change) {
    AttentionCase bad = good;
    change(bad);
    EXPECT_NE(message(bad).find(text), std::string::npos) << message(bad);
  };
  expect("ext_len[0]: expected a length in [0, 13], got 14",
         [](AttentionCase& c) { c.ext_len = at::tensor({14}, at::kLong); });
  expect("got -1", [](AttentionCase& c) { c.ext_len = at::tensor({-1}, at::kLong); });
  expect("ext_len: expected dtype", [](AttentionCase& c) { c.ext_len = c.ext_len.to(at::kInt); });
  expect("ext_len: expected shape [1], got [2]",
         [](AttentionCase& c) { c.ext_len = at::zeros({2}, at::kLong); });
  expect("q: expected dtype", [](AttentionCase& c) { c.q = c.q.to(at::kDouble); });
  expect("k_ext: expected dtype", [](AttentionCase& c) { c.k_ext = c.k_ext.to(at::kHalf); });
  expect("v_ext: expected shape", [](AttentionCase& c) { c.v_ext = c.v_ext.slice(2, 1); });
  expect("k_in: expected shape [1, 2, *, 48]",
         [](AttentionCase& c) { c.k_in = c.k_in.slice(3, 1); });
  expect("v_in: expected a contiguous last dimension",
         [](AttentionCase& c) { c.v_in = c.v_in.transpose(2, 3).contiguous().transpose(2, 3); });
  expect("divides the 3 query heads", [](AttentionCase& c) { c.q = c.q.slice(1, 1); });
  expect("q: expected a tensor", [](AttentionCase& c) { c.q = at::Tensor(); });
}

}  // namespace
}  // namespace blockscope::testing
