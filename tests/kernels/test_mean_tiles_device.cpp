// The mean probabilities that block_topk chooses from on tensor cores, executed by the emulator:
// compared with float64, whatever the rows, keys and schedule are, and what the kernel reads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/emulated_operators.h"

namespace blockscope::testing {
namespace {

at::Tensor lse_of(const AttentionCase& problem) {
  return split_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, problem.scale)
      .lse_external;
}

TopK all_keys(const AttentionCase& problem, const at::Tensor& lse,
              const emulated::Options& options = {}) {
  emulated::set_options(options);
  return block_topk_on(emulator(), problem.q, problem.k_ext, problem.ext_len, lse,
                       std::max<int64_t>(1, problem.k_ext.size(2)), problem.scale);
}

/// [K, N] float64.
at::Tensor reference(const AttentionCase& problem, const at::Tensor& lse, int64_t sequence) {
  const int64_t length = problem.ext_len[sequence].item<int64_t>();
  const int64_t kv_heads = problem.k_ext.size(1);
  const at::Tensor keys = problem.k_ext[sequence].narrow(1, 0, length).to(at::kDouble);
  const at::Tensor rows = problem.q[sequence]
                              .to(at::kDouble)
                              .reshape({kv_heads, -1, problem.q.size(3)});  // [K, G * T, D]
  const at::Tensor scores = at::matmul(rows, keys.transpose(1, 2)) * problem.scale;
  const at::Tensor lses = lse[sequence].to(at::kDouble).reshape({kv_heads, -1, 1});
  return (scores - lses).exp().mean(1);
}

void expect_reference(const AttentionCase& problem) {
  const at::Tensor lse = lse_of(problem);
  const TopK got = all_keys(problem, lse);
  for (int64_t s = 0; s < problem.q.size(0); ++s) {
    const int64_t length = problem.ext_len[s].item<int64_t>();
    if (length == 0) continue;
    const at::Tensor index = got.index[s].narrow(1, 0, length).to(at::kLong);
    const at::Tensor want = reference(problem, lse, s).gather(1, index);
    EXPECT_TRUE(
        at::allclose(got.probability[s].narrow(1, 0, length).to(at::kDouble), want, 2e-5, 1e-30))
        << "sequence " << s;
    EXPECT_TRUE(at::equal(std::get<0>(index.sort(-1)), at::arange(length).expand_as(index)));
  }
}

TEST(MeanTiles, EqualFloat64) {
  uint64_t seed = 1;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t dim : {16, 64, 72, 128, 136, 256}) {
      // 24 rows, 64 and 65, and two groups of 128 (of 64 where rows are long) with a ragged last.
      for (const int64_t queries : {12, 32, 65, 75}) {
        const int64_t kv_heads = queries == 65 ? 2 : 1;
        SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << ", " << dim << " channels, "
                                          << queries << " queries");
        expect_reference(make_case({.heads = 2,
                                    .kv_heads = kv_heads,
                                    .dim = dim,
                                    .queries = queries,
                                    .ext_len = {130, 0, 63, 64, 65},
                                    .dtype = dtype},
                                   seed++));
      }
    }
  }
}

TEST(MeanTiles, EqualFloat64OverManyKeysOfAThreadBlock) {
  // 1024 thread blocks are wanted before one takes more than a tile.
  expect_reference(make_case({.heads = 20,
                              .kv_heads = 20,
                              .dim = 16,
                              .queries = 2,
                              .ext_len = {9000, 8000},
                              .dtype = at::kBFloat16},
                             7));
}

TEST(MeanTiles, NoScheduleSharedMemoryOrOtherSequenceChangesABit) {
  for (const int64_t dim : {64, 256}) {
    const AttentionCase problem = make_case({.heads = 4,
                                             .kv_heads = 2,
                                             .dim = dim,
                                             .queries = 40,
                                             .ext_len = {300, 90},
                                             .dtype = at::kHalf},
                                            3);
    const at::Tensor lse = lse_of(problem);
    const TopK first = all_keys(problem, lse);
    for (const uint64_t seed : {2u, 3u}) {
      const TopK other = all_keys(problem, lse, {.seed = seed});
      EXPECT_TRUE(at::equal(other.index, first.index));
      EXPECT_TRUE(at::equal(other.probability, first.probability));
    }
    const TopK small = all_keys(problem, lse, {.shared_limit = 99 * 1024});
    EXPECT_TRUE(at::equal(small.probability, first.probability));
  }
}

TEST(MeanTiles, NanAndInfinityStayWithTheirKeys) {
  AttentionCase problem = make_case({.heads = 3,
                                     .kv_heads = 1,
                                     .dim = 64,
                                     .queries = 5,
                                     .ext_len = {150},
                                     .dtype = at::kBFloat16},
                                    4);
  problem.q.select(3, 7).fill_(0.5);
  const at::Tensor lse = lse_of(problem);
  problem.k_ext[0][0][20].fill_(std::nan(""));
  problem.k_ext[0][0][77][7].fill_(-std::numeric_limits<float>::infinity());  // scores of -inf
  const TopK got = all_keys(problem, lse);
  EXPECT_EQ(got.index[0][0][149].item<int>(), 20) << "NaN is last";
  EXPECT_TRUE(std::isnan(got.probability[0][0][149].item<float>()));
  EXPECT_EQ(got.index[0][0][148].item<int>(), 77);
  EXPECT_EQ(got.probability[0][0][148].item<float>(), 0.0f);
  EXPECT_TRUE(at::isfinite(got.probability[0][0].narrow(0, 0, 149)).all().item<bool>());
}

TEST(MeanTiles, KeysAreReadOnceFor128RowsAndWithoutBankConflicts) {
  for (const int64_t dim : {64, 128, 256}) {
    const AttentionCase problem = make_case({.heads = 8,
                                             .kv_heads = 2,
                                             .dim = dim,
                                             .queries = 32,
                                             .ext_len = {300, 130},
                                             .dtype = at::kBFloat16},
                                            6);
    const at::Tensor lse = lse_of(problem);
    emulated::counters() = {};
    all_keys(problem, lse);
    const int64_t groups = dim > 128 ? 2 : 1;  // of 64 rows, of 128
    const int64_t keys = 2 * (300 + 130);
    const int64_t tile = dim > 128 ? 32 : 64;
    const int64_t blocks = 2 * ((300 + tile - 1) / tile + (130 + tile - 1) / tile);
    EXPECT_EQ(emulated::counters().copied_bytes, (groups * keys + blocks * 4 * 32) * dim * 2);
    EXPECT_EQ(emulated::counters().bank_conflicts, 0);
  }
}

}  // namespace
}  // namespace blockscope::testing
