// split_attention's kernels for GPUs, executed by the emulator: the CPU's cases against the float64
// reference, what ops.h promises whatever the numbers are, and what the kernels read.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/emulated_operators.h"
#include "tests/kernels/split_cases.h"

namespace blockscope::testing {
namespace {

using emulated::Rounding;

SplitAttention split(const AttentionCase& problem, uint64_t seed = 1,
                     Rounding rounding = Rounding::kNearest) {
  emulated::set_options({.seed = seed, .rounding = rounding});
  return split_attention_on(emulator(), problem.q, problem.k_ext, problem.v_ext, problem.ext_len,
                            problem.k_in, problem.v_in, problem.scale, nullptr, nullptr);
}

// The CPU's cases, and those that differ only in the GPU's kernels.
std::vector<CaseShape> device_cases() {
  std::vector<CaseShape> cases;
  for (const CaseShape& shape : case_table()) cases.push_back(shape);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    // More than one tile of rows; every padded head_dim with many rows; chunks and their tails.
    cases.push_back({.heads = 10, .kv_heads = 1, .queries = 16, .ext_len = {70}, .dtype = dtype});
    for (const int64_t dim : {56, 72, 128, 136, 256}) {
      cases.push_back({.heads = 4,
                       .kv_heads = 1,
                       .dim = dim,
                       .queries = 24,
                       .internal = 24,
                       .ext_len = {130},
                       .dtype = dtype});
    }
    cases.push_back({.heads = 2, .dim = 16, .ext_len = {255, 256, 257}, .dtype = dtype});
    cases.push_back({.heads = 2, .dim = 16, .ext_len = {320, 0, 577}, .dtype = dtype});
  }
  return cases;
}

class SplitDeviceCases : public ::testing::TestWithParam<int> {};

TEST_P(SplitDeviceCases, EqualTheFloat64Reference) {
  const int part = GetParam();
  const std::vector<CaseShape> cases = device_cases();
  for (size_t i = static_cast<size_t>(part); i < cases.size(); i += 4) {
    const uint64_t seed = i + 1;
    SCOPED_TRACE(::testing::Message() << cases[i] << " seed " << seed);
    const AttentionCase problem = make_case(cases[i], seed);
    expect_matches(problem, split(problem, seed));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Quarter, SplitDeviceCases, ::testing::Range(0, 4));

TEST(SplitAttentionDevice, SchedulesChangeNothingAndTruncatingUnitsStayInTolerance) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t dim : {64, 128, 256}) {
      const AttentionCase problem = make_case({.heads = 6,
                                               .dim = dim,
                                               .queries = 12,
                                               .internal = 12,
                                               .ext_len = {450, 100},
                                               .dtype = dtype},
                                              11);
      const SplitAttention first = split(problem, 1);
      for (uint64_t seed = 2; seed < 6; ++seed) {
        const SplitAttention again = split(problem, seed);
        EXPECT_TRUE(at::equal(first.out, again.out)) << "seed " << seed;
        EXPECT_TRUE(at::equal(first.external, again.external)) << "seed " << seed;
      }
      expect_matches(problem, split(problem, 6, Rounding::kTruncate));
    }
  }
}

TEST(SplitAttentionDevice, EmptySidesAreZeroAndMinusInfinityAndTheOtherSideStays) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const SplitAttention left = split(make_case({.ext_len = {0, 0}, .dtype = dtype}, 1));
    EXPECT_TRUE(at::equal(left.external, at::zeros_like(left.external)));
    EXPECT_TRUE(left.lse_external.eq(-INFINITY).all().item<bool>());
    EXPECT_TRUE(at::equal(left.out, left.internal.to(dtype)));
    const SplitAttention right =
        split(make_case({.internal = 0, .ext_len = {9, 300}, .dtype = dtype}, 2));
    EXPECT_TRUE(at::equal(right.internal, at::zeros_like(right.internal)));
    EXPECT_TRUE(right.lse_internal.eq(-INFINITY).all().item<bool>());
    EXPECT_TRUE(at::equal(right.out, right.external.to(dtype)));
    const SplitAttention none =
        split(make_case({.internal = 0, .ext_len = {0}, .spare = 0, .dtype = dtype}, 3));
    EXPECT_TRUE(at::equal(none.out, at::zeros_like(none.out)));
  }
}

TEST(SplitAttentionDevice, ResultsDoNotDependOnOtherSequences) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionCase batch = make_case(
        {.heads = 6, .queries = 16, .internal = 16, .ext_len = {1500, 64, 700}, .dtype = dtype}, 4);
    const SplitAttention together = split(batch);
    for (int64_t s = 0; s < 3; ++s) {
      AttentionCase one = batch;
      for (at::Tensor* tensor :
           {&one.q, &one.k_ext, &one.v_ext, &one.k_in, &one.v_in, &one.ext_len}) {
        *tensor = tensor->slice(0, s, s + 1);
      }
      const SplitAttention alone = split(one);
      EXPECT_TRUE(at::equal(alone.out[0], together.out[s])) << "sequence " << s;
      EXPECT_TRUE(at::equal(alone.lse_external[0], together.lse_external[s])) << "sequence " << s;
    }
  }
}

// A small grid and a large one take different tiles of rows.
TEST(SplitAttentionDevice, ManyRowsGiveTheSameBitsInSmallAndLargeGrids) {
  const AttentionCase batch = make_case({.heads = 8,
                                         .kv_heads = 8,
                                         .dim = 16,
                                         .queries = 72,
                                         .internal = 8,
                                         .ext_len = {1400, 1400, 1400, 70},
                                         .dtype = at::kBFloat16},
                                        12);
  const SplitAttention together = split(batch);  // 8 KV heads of 7 blocks, 4 sequences
  AttentionCase one = batch;
  for (at::Tensor* tensor : {&one.q, &one.k_ext, &one.v_ext, &one.k_in, &one.v_in, &one.ext_len}) {
    *tensor = tensor->slice(0, 1, 2);
  }
  const SplitAttention alone = split(one);
  EXPECT_TRUE(at::equal(alone.external[0], together.external[1]));
  EXPECT_TRUE(at::equal(alone.lse_external[0], together.lse_external[1]));
  EXPECT_TRUE(at::equal(alone.out[0], together.out[1]));
}

// Shared memory of a thread block: 99 KiB on sm_86, 89 and 120, 163 on sm_80, 227 on sm_90 and 100.
TEST(SplitAttentionDevice, GPUsWithLessSharedMemoryGiveTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    for (const int64_t dim : {64, 128, 256}) {
      for (const int64_t queries : {12, 40}) {
        const AttentionCase problem = make_case({.heads = 2,
                                                 .kv_heads = 1,
                                                 .dim = dim,
                                                 .queries = queries,
                                                 .internal = queries,
                                                 .ext_len = {300, 40},
                                                 .dtype = dtype},
                                                13);
        const SplitAttention large = split(problem);
        for (const int kib : {99, 163}) {
          emulated::set_options({.seed = 3, .shared_limit = kib * 1024});
          const SplitAttention small = split_attention_on(
              emulator(), problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
              problem.v_in, problem.scale, nullptr, nullptr);
          EXPECT_TRUE(at::equal(small.out, large.out)) << kib << ", D " << dim;
          EXPECT_TRUE(at::equal(small.external, large.external)) << kib << ", D " << dim;
        }
      }
    }
  }
  emulated::set_options({});
}

// [S, N, K, D + more] storage, seen as [S, K, N, D]; NaN in everything that must not be read.
at::Tensor embed(const at::Tensor& tensor, int64_t before, int64_t behind) {
  at::Tensor storage = at::full(
      {tensor.size(0), tensor.size(2) + 5, tensor.size(1), before + tensor.size(3) + behind}, NAN,
      tensor.options());
  at::Tensor view = storage.permute({0, 2, 1, 3})
                        .slice(2, 2, 2 + tensor.size(2))
                        .slice(3, before, before + tensor.size(3));
  view.copy_(tensor);
  return view;
}

TEST(SplitAttentionDevice, StridedAndMisalignedViewsGiveTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionCase plain = make_case({.dim = 24, .ext_len = {90}, .dtype = dtype}, 5);
    for (const auto& [before, behind] : {std::pair{0, 8}, {3, 4}, {8, 0}, {1, 7}, {0, 1}}) {
      AttentionCase strided = plain;
      strided.q = embed(plain.q, before, behind);
      strided.k_ext = embed(plain.k_ext, before, behind);
      strided.v_ext = embed(plain.v_ext, behind, before + 8);  // strides other than the keys'
      strided.k_in = embed(plain.k_in, before, behind);
      strided.v_in = embed(plain.v_in, before, behind);
      EXPECT_TRUE(at::equal(split(plain).out, split(strided).out)) << before << ", " << behind;
    }
    EXPECT_TRUE(split(plain).out.transpose(1, 2).is_contiguous()) << "a token's heads together";
  }
}

TEST(SplitAttentionDevice, EveryKeyAndValueIsReadOnceAndWithoutBankConflicts) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t queries : {4, 32}) {
      const AttentionCase problem = make_case({.heads = 8,
                                               .dim = dim,
                                               .queries = queries,
                                               .internal = queries,
                                               .ext_len = {300, 130},
                                               .dtype = at::kBFloat16},
                                              6);
      emulated::counters() = {};
      split(problem);
      const int64_t keys = 2 * 2 * (300 + 130 + 2 * queries);  // of two KV heads, and values
      const int64_t rows = 8 * queries * (2 + 1 + 2);          // a tile for each chunk
      EXPECT_EQ(emulated::counters().copied_bytes, (keys + rows) * dim * 2);
      EXPECT_EQ(emulated::counters().bank_conflicts, 0);
    }
  }
}

TEST(SplitAttentionDevice, ScoresOfTenThousandNeitherOverflowNorVanish) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto values = [&](std::vector<float> numbers) {
      return at::tensor(numbers).to(dtype).view({1, 1, 2, 1});
    };
    AttentionCase problem;
    problem.scale = 1.0;
    problem.q = values({1.0f, -1.0f});
    problem.k_ext = values({9984.0f, 9984.0f});  // in bfloat16 too
    problem.v_ext = values({2.0f, 4.0f});
    problem.k_in = values({-9984.0f, -9984.0f});
    problem.v_in = values({10.0f, 30.0f});
    problem.ext_len = at::tensor({2}, at::kLong);
    const SplitAttention got = split(problem);
    EXPECT_TRUE(at::equal(got.external.flatten(), at::tensor({3.0f, 3.0f})));
    EXPECT_TRUE(at::equal(got.internal.flatten(), at::tensor({20.0f, 20.0f})));
    EXPECT_TRUE(at::equal(got.out.flatten().to(at::kFloat), at::tensor({3.0f, 20.0f})));
    EXPECT_FLOAT_EQ(got.lse_external.flatten()[0].item<float>(), 9984.0f + std::log(2.0f));
    EXPECT_FLOAT_EQ(got.lse_external.flatten()[1].item<float>(), -9984.0f + std::log(2.0f));
  }
}

// A whole tile of them comes first: the running maximum is -inf then.
TEST(SplitAttentionDevice, ScoresOfMinusInfinityWeighNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionCase problem;
    problem.scale = 1.0;
    problem.q = at::ones({1, 1, 1, 1}, dtype);
    problem.k_ext = at::zeros({1, 1, 70, 1}, dtype);
    problem.v_ext = at::arange(70).to(dtype).view({1, 1, 70, 1});
    problem.k_in = at::zeros({1, 1, 2, 1}, dtype);
    problem.v_in = at::full({1, 1, 2, 1}, 8.0, at::TensorOptions(dtype));
    problem.ext_len = at::tensor({70}, at::kLong);
    problem.k_ext.slice(2, 0, 64).fill_(-INFINITY);
    const SplitAttention some = split(problem);
    EXPECT_FLOAT_EQ(some.external.item<float>(), 66.5f);
    EXPECT_FLOAT_EQ(some.lse_external.item<float>(), std::log(6.0f));
    problem.k_ext.fill_(-INFINITY);
    const SplitAttention none = split(problem);
    EXPECT_EQ(none.external.item<float>(), 0.0f);
    EXPECT_EQ(none.lse_external.item<float>(), -INFINITY);
    EXPECT_EQ(none.out.item<float>(), 8.0f);
  }
}

TEST(SplitAttentionDevice, NaNStaysInTheRowsThatSeeIt) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    expect_nan_in_its_rows_alone(dtype, [](const AttentionCase& c) { return split(c); });
    AttentionCase nan_value = make_case({.ext_len = {300}, .dtype = dtype}, 9);
    nan_value.v_ext[0][1][280][3] = NAN;
    const at::Tensor out = split(nan_value).out;
    EXPECT_TRUE(out[0].slice(0, 2).select(2, 3).isnan().all().item<bool>());
    EXPECT_EQ(out.isnan().sum().item<int64_t>(), 2 * 4);
  }
}

// --- prefill_attention's tiles, beyond the cases of the CPU's test

struct PrefillProblem {
  at::Tensor q, k, v;

  at::Tensor run(const emulated::Options& options) const {
    emulated::set_options(options);
    const at::Tensor length = at::full({q.size(0)}, k.size(2), at::kLong);
    at::Tensor out = prefill_attention_on(emulator(), q, k, v, length, 16, 0.2, 0);
    emulated::set_options({});
    return out;
  }
};

PrefillProblem make_prefill(int64_t dim, int64_t tokens, at::ScalarType dtype) {
  at::manual_seed(21);
  const auto random = [&](int64_t heads) { return at::randn({2, heads, tokens, dim}).to(dtype); };
  return {random(4), random(2), random(2)};
}

TEST(PrefillTiles, SchedulesAndSmallerGPUsChangeNothing) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t dim : {64, 128, 256}) {
      const PrefillProblem problem = make_prefill(dim, 150, dtype);
      const at::Tensor first = problem.run({});
      for (const uint64_t seed : {2u, 3u}) {
        EXPECT_TRUE(at::equal(problem.run({.seed = seed}), first)) << "seed " << seed;
      }
      for (const int kib : {99, 163}) {
        EXPECT_TRUE(at::equal(problem.run({.shared_limit = kib * 1024}), first)) << kib << " KiB";
      }
      const at::Tensor truncated = problem.run({.rounding = Rounding::kTruncate});
      const double unit = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
      EXPECT_TRUE(at::allclose(truncated.to(at::kDouble), first.to(at::kDouble), unit, 1e-4));
    }
  }
}

TEST(PrefillTiles, StridedAndMisalignedViewsGiveTheSameBits) {
  const PrefillProblem plain = make_prefill(24, 70, at::kBFloat16);
  const at::Tensor expected = plain.run({});
  for (const auto& [before, behind] : {std::pair{0, 8}, {3, 4}, {8, 0}, {0, 1}}) {
    const PrefillProblem strided{embed(plain.q, before, behind), embed(plain.k, before, behind),
                                 embed(plain.v, behind, before + 8)};
    EXPECT_TRUE(at::equal(strided.run({}), expected)) << before << ", " << behind;
  }
}

TEST(PrefillTiles, KeysAreReadOncePerTileOfRowsAndWithoutBankConflicts) {
  for (const int64_t dim : {64, 128, 256}) {
    const PrefillProblem problem = make_prefill(dim, 96, at::kBFloat16);
    emulated::counters() = {};
    problem.run({});
    // Two query heads a KV head: tiles of 64 tokens, which see 64 and 96 keys; two sequences of two
    // KV heads.
    const int64_t rows = 2 * 96 + 2 * (64 + 96);
    EXPECT_EQ(emulated::counters().copied_bytes, 4 * rows * dim * 2);
    EXPECT_EQ(emulated::counters().bank_conflicts, 0);
  }
}

}  // namespace
}  // namespace blockscope::testing
