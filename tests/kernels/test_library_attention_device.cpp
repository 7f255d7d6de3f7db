// split_attention through a library's kernel for the prefix, and the join of ours, in the emulator.
// The library is plain torch here (plain_prefix).
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/emulated_operators.h"

namespace blockscope::testing {
namespace {

SplitAttention split(const AttentionCase& problem, const char* through,
                     WeightSpread* spread = nullptr) {
  setenv("BLOCKSCOPE_SPLIT", through, 1);
  const SplitAttention result =
      split_attention_on(emulator(), problem.q, problem.k_ext, problem.v_ext, problem.ext_len,
                         problem.k_in, problem.v_in, problem.scale, nullptr, spread);
  unsetenv("BLOCKSCOPE_SPLIT");
  return result;
}

void expect_near(const at::Tensor& got, const std::vector<double>& expected, double limit,
                 const char* what) {
  const std::vector<double> values = to_doubles(got);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (expected[i] == values[i]) continue;  // infinities
    ASSERT_NEAR(values[i], expected[i], limit) << what << " " << i;
  }
}

void expect_solution(const SplitAttention& got, const SplitReference& expected) {
  const double rounded = 5.0 * unit_roundoff(got.out.scalar_type());  // of values below 5
  expect_near(got.external, expected.external, rounded, "external");
  expect_near(got.lse_external, expected.lse_external, 1e-4, "lse_external");
  expect_near(got.internal, expected.internal, 1e-4, "internal");
  expect_near(got.lse_internal, expected.lse_internal, 1e-4, "lse_internal");
  expect_near(got.out.contiguous(), expected.out, 2.0 * rounded, "out");
}

TEST(LibraryAttention, EqualsTheFloat64Reference) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {8, 48, 128, 256}) {
      for (const int64_t internal : {0, 1, 31, 70}) {
        const AttentionCase problem = make_case({.heads = 6,
                                                 .dim = dim,
                                                 .queries = 5,
                                                 .internal = internal,
                                                 .ext_len = {90, 90},
                                                 .dtype = dtype},
                                                static_cast<uint64_t>(dim + internal));
        SCOPED_TRACE(::testing::Message() << dim << " " << internal);
        const SplitAttention got = split(problem, "library");
        const SplitReference expected = split_reference(problem);
        expect_solution(got, expected);
        EXPECT_FALSE(at::equal(got.external, split(problem, "own").external));
      }
    }
  }
}

TEST(LibraryAttention, LeavesOtherCallsToOurKernels) {
  const CaseShape plain{.ext_len = {60}, .dtype = at::kBFloat16};
  std::vector<CaseShape> shapes(4, plain);
  shapes[0].dtype = at::kFloat;
  shapes[1].ext_len = {60, 59};
  shapes[2].ext_len = {0};
  shapes[3].internal = shapes[3].queries = 129;
  for (const CaseShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape);
    const AttentionCase problem = make_case(shape, 3);
    EXPECT_TRUE(at::equal(split(problem, "library").external, split(problem, "own").external));
  }
  AttentionCase misaligned = make_case(plain, 3);
  const at::Tensor wide = at::zeros({1, 2, 63, 49}, at::kBFloat16);
  wide.slice(3, 1).copy_(misaligned.k_ext);
  misaligned.k_ext = wide.slice(3, 1);
  EXPECT_TRUE(at::equal(split(misaligned, "library").external, split(misaligned, "own").external));
  // Queries of one head for each KV head are folded without a copy.
  AttentionCase single = make_case({.heads = 2, .ext_len = {60}, .dtype = at::kBFloat16}, 4);
  const at::Tensor expected = split(single, "library").external;
  const at::Tensor padded = at::zeros({1, 2, 4, 49}, at::kBFloat16);
  padded.slice(3, 1).copy_(single.q);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned_for_library(padded.slice(3, 1)).data_ptr()) % 16,
            0u);
  EXPECT_EQ(aligned_for_library(single.q).data_ptr(), single.q.data_ptr());
  single.q = padded.slice(3, 1);
  EXPECT_TRUE(at::equal(split(single, "library").external, expected));
  // Too few keys for the table.
  const AttentionCase small = make_case(plain, 3);
  const SplitAttention chosen =
      split_attention_on(emulator(), small.q, small.k_ext, small.v_ext, small.ext_len, small.k_in,
                         small.v_in, small.scale, nullptr, nullptr);
  EXPECT_TRUE(at::equal(chosen.external, split(small, "own").external));
  EXPECT_THROW(split(small, "other"), c10::Error);
}

TEST(LibraryAttention, NoHeadThatReusesGivesTheSameBits) {
  const AttentionCase problem = make_case({.ext_len = {60}, .dtype = at::kBFloat16}, 5);
  const SplitAttention expected = split(problem, "library");
  setenv("BLOCKSCOPE_SPLIT", "library", 1);
  const SourcedAttention got = reuse_attention_on(
      emulator(), problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
      problem.v_in, {}, {}, at::zeros({4}, at::kBool), problem.scale, nullptr, {});
  unsetenv("BLOCKSCOPE_SPLIT");
  EXPECT_TRUE(at::equal(got.out, expected.out));
  EXPECT_TRUE(at::equal(got.external, expected.external));
  EXPECT_TRUE(at::equal(got.keys_read, at::full({1, 2}, 60, at::kLong)));
}

int64_t prefix_calls = 0;

PrefixPair counted_prefix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          double scale) {
  ++prefix_calls;
  return plain_prefix(q, k, v, scale);
}

SourcedAttention reuse(const AttentionCase& problem, const at::Tensor& external,
                       const at::Tensor& lse, const at::Tensor& mask, const char* through,
                       const at::Tensor& refresh_rows = {}, WeightSpread* spread = nullptr) {
  DeviceQueue queue = emulator();
  queue.prefix = counted_prefix;
  prefix_calls = 0;
  setenv("BLOCKSCOPE_SPLIT", through, 1);
  SourcedAttention result = reuse_attention_on(
      queue, problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in, problem.v_in,
      external, lse, mask, problem.scale, spread, refresh_rows);
  unsetenv("BLOCKSCOPE_SPLIT");
  return result;
}

// KV heads 0, 1 and 2 serve two heads each.
struct ReuseCase {
  std::vector<int64_t> flags;
  std::vector<int64_t> keys_read;
  int64_t calls;  // of the library
};

TEST(LibraryAttention, ReadsTheHeadsThatDoNotReuse) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const ReuseCase& one : {ReuseCase{{1, 1, 1, 1, 1, 1}, {0, 0, 0}, 0},
                                 ReuseCase{{0, 1, 1, 0, 1, 0}, {90, 90, 90}, 1},
                                 ReuseCase{{1, 1, 0, 0, 0, 1}, {0, 90, 90}, 1},
                                 ReuseCase{{0, 0, 1, 1, 1, 0}, {90, 0, 90}, 2}}) {
      SCOPED_TRACE(::testing::Message() << dtype << ::testing::PrintToString(one.flags));
      AttentionCase problem = make_case({.heads = 6,
                                         .kv_heads = 3,
                                         .queries = 5,
                                         .internal = 5,
                                         .ext_len = {90, 90},
                                         .dtype = dtype},
                                        8);
      SeededRandom random(9);
      const at::Tensor external = random_tensor(problem.q.sizes(), at::kFloat, random);
      const at::Tensor lse = random_tensor(problem.q.sizes().slice(0, 3), at::kFloat, random, 5.0);
      const at::Tensor mask = at::tensor(one.flags).to(at::kBool);
      const at::Tensor taken = mask.view({1, 6, 1}).expand({2, 6, 5});
      const SplitReference expected = reference_with(problem, external, lse, taken);
      for (int64_t head = 0; head < 3; ++head) {  // keys that must not be read
        if (one.keys_read[static_cast<size_t>(head)] == 0) problem.k_ext.select(1, head).fill_(NAN);
      }
      const SourcedAttention got = reuse(problem, external, lse, mask, "library");
      EXPECT_EQ(prefix_calls, one.calls);
      expect_solution(got, expected);
      const at::Tensor cached = at::where(taken.unsqueeze(3), external, got.external);
      EXPECT_TRUE(at::equal(got.external, cached));
      EXPECT_TRUE(at::equal(got.keys_read, at::tensor(one.keys_read).expand({2, 3})));
    }
  }
}

TEST(LibraryAttention, TakesOtherHeadsOfASequenceAndLeavesTheirSpreadOut) {
  const AttentionCase problem = make_case({.ext_len = {60, 60}, .dtype = at::kBFloat16}, 6);
  const SplitAttention fresh = split(problem, "library");
  // In both sequences the first KV head reads, for another query head.
  const at::Tensor mask = at::tensor({0, 1, 1, 1, 1, 0, 1, 1}).view({2, 4}).to(at::kBool);
  WeightSpread all;
  all.ends = {{30, 60}, {10, 60}};
  WeightSpread spread = all;
  split(problem, "library", &all);
  const at::Tensor other = at::ones_like(fresh.external);
  const SourcedAttention got =
      reuse(problem, other, fresh.lse_external, mask, "library", {}, &spread);
  EXPECT_EQ(prefix_calls, 1);
  EXPECT_TRUE(at::equal(got.external, at::where(mask.view({2, 4, 1, 1}), other, fresh.external)));
  EXPECT_TRUE(at::equal(got.keys_read, at::tensor({60, 0, 60, 0}).view({2, 2})));
  for (size_t i = 0; i < 5; ++i) {
    const at::Tensor& values = *spread.answer().at(i);
    EXPECT_TRUE(at::equal(values.isnan().any(2), mask)) << i;
    const at::Tensor read = mask.logical_not();
    EXPECT_TRUE(at::allclose(values.index({read}), all.answer().at(i)->index({read}))) << i;
  }
}

TEST(LibraryAttention, LeavesOtherReuseToOurKernels) {
  const AttentionCase problem = make_case({.ext_len = {60, 60}, .dtype = at::kBFloat16}, 5);
  const SplitAttention fresh = split(problem, "own");
  const auto stays = [&](const at::Tensor& mask, const at::Tensor& rows) {
    const auto through = [&](const char* name) {
      return reuse(problem, fresh.external, fresh.lse_external, mask, name, rows);
    };
    const at::Tensor own = through("own").out;
    EXPECT_TRUE(at::equal(through("library").out, own));
    EXPECT_EQ(prefix_calls, 0);
  };
  // Sequences that read other heads, and rows that read for themselves.
  const at::Tensor differing = at::tensor({1, 1, 0, 0, 0, 0, 1, 1}).view({2, 4}).to(at::kBool);
  stays(differing, {});
  const at::Tensor all = at::ones({4}, at::kBool);
  stays(all, at::eye(4).slice(0, 0, 2).to(at::kBool));
  // The smallest run has too few keys for the table, all heads together have enough.
  AttentionSizes sizes{.sequences = 1,
                       .heads = 8,
                       .kv_heads = 8,
                       .group = 1,
                       .queries = 80,
                       .dim = 64,
                       .external_keys = 8192};
  const at::Tensor keys = at::empty({1, 8, 8192, 64}, at::kBFloat16);
  const auto reads = [&](const std::vector<HeadRun>& runs) {
    return library_reads(sizes, {8192}, 4, runs, keys, keys);
  };
  EXPECT_TRUE(reads({{0, 8}}) && reads({}) && reads({{0, 4}, {5, 3}}) == reads({{0, 3}}));
  EXPECT_FALSE(reads({{0, 3}}) || reads({{0, 3}, {4, 4}}));
}

TEST(LibraryAttention, KeepsNaNInItsRowAndFillsTheSpread) {
  AttentionCase problem = make_case({.ext_len = {60}, .dtype = at::kBFloat16}, 7);
  WeightSpread own;
  own.ends = {{30, 60}};
  WeightSpread library = own;
  split(problem, "own", &own);
  split(problem, "library", &library);
  EXPECT_TRUE(at::allclose(own.range, library.range, 1e-3, 1e-5));
  EXPECT_TRUE(at::allclose(own.key, library.key, 1e-3, 1e-5));
  problem.q[0][1][2][3] = std::nan("");
  const at::Tensor out = split(problem, "library").out;
  const at::Tensor is_nan = out.isnan().any(3);
  EXPECT_TRUE(is_nan[0][1][2].item<bool>());
  EXPECT_EQ(is_nan.sum().item<int64_t>(), 1);
}

}  // namespace
}  // namespace blockscope::testing
