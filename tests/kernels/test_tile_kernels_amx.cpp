// The tile kernels of AMX: the code that ships, its tile instructions executed by the processor or,
// where it has none, in emulation. This program also has the cases of the attention operators,
// which are made to take these kernels.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/ops.h"
#include "kernels/simd/amx_support.h"
#include "kernels/simd/instruction_set.h"
#include "kernels/simd/tile_kernels.h"
#include "tests/kernels/amx_emulation.h"
#include "tests/kernels/attention_case.h"

namespace blockscope {

// Takes the place of the shared library's own, for all of this program. The others are tested by
// programs of their own.
const TileKernels* const* available_tile_kernels(int64_t* count) {
  static const TileKernels* const amx = &kTileKernelsAmx;
  static const TileKernels* const baseline = &kTileKernelsBaseline;
  static const bool runs = [] {
    if (!has_avx512_bf16()) return false;  // AMX or not, what these kernels do besides needs it
    if (!may_use_amx()) testing::install_amx_traps();
    return true;
  }();
  *count = 1;
  return runs ? &amx : &baseline;
}

namespace testing {
namespace {

class TileKernelsAmx : public ::testing::Test {
 protected:
  void SetUp() override {
    if (instruction_set() != "amx_bf16") GTEST_SKIP() << "needs AVX512-BF16";
  }
};

TEST_F(TileKernelsAmx, RunInTheEmulationWhereTheProcessorHasNoTiles) {
  const int64_t before = emulated_tile_products();
  // 5 rows of 48 channels: two blocks of the depth; 20 keys after none: two tiles of them, one
  // block to weigh, with two parts of the weights and three tiles of channels.
  const AttentionCase c = make_case({.heads = 1,
                                     .kv_heads = 1,
                                     .queries = 5,
                                     .internal = 20,
                                     .ext_len = {0},
                                     .dtype = at::kBFloat16},
                                    1);
  split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale);
  EXPECT_EQ(emulated_tile_products() - before, may_use_amx() ? 0 : 2 * 2 + 2 * 3);
  EXPECT_FALSE(emulated_tiles_are_configured()) << "left behind";
}

// The rules of kernels/ops.h for values.
TEST_F(TileKernelsAmx, NaNAndInfinityOfAValueStayInTheirChannel) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    AttentionCase c = make_case({.ext_len = {70}, .dtype = at::kBFloat16}, 2);
    const auto split = [&] {
      return split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale);
    };
    const SplitAttention clean = split();
    c.v_ext[0][0][69][17] = bad;  // of query heads 0 and 1
    const SplitAttention got = split();
    for (const auto& [was, is] :
         {std::pair(clean.out, got.out), std::pair(clean.external, got.external)}) {
      EXPECT_FALSE(is[0].slice(0, 0, 2).select(-1, 17).isfinite().any().item<bool>());
      is[0].slice(0, 0, 2).select(-1, 17).zero_();
      was[0].slice(0, 0, 2).select(-1, 17).zero_();
      EXPECT_TRUE(at::equal(was, is));
    }
    EXPECT_TRUE(at::equal(clean.internal, got.internal));
  }
}

TEST_F(TileKernelsAmx, ProveThemselvesAndFailIfOneProductIsWrong) {
  EXPECT_TRUE(multiplies_exactly(kTileKernelsAmx));
  EXPECT_TRUE(multiplies_exactly(kTileKernelsAvx512Bf16));
  TileKernels wrong = kTileKernelsAmx;
  wrong.scores = [](Element element, const float* queries, const float* keys, int64_t rows,
                    int64_t num_keys, int64_t dim, float* scores) {  // the last row is missing
    kTileKernelsAmx.scores(element, queries, keys, rows - 1, num_keys, dim, scores);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
  wrong.scores = [](Element element, const float* queries, const float* keys, int64_t rows,
                    int64_t num_keys, int64_t dim, float* scores) {  // halves of keys swapped
    std::vector<float> swapped(static_cast<size_t>(packed_tile_floats(dim)));
    for (size_t i = 0; i < swapped.size(); ++i) swapped[i] = keys[i ^ 16];
    kTileKernelsAmx.scores(element, queries, swapped.data(), rows, num_keys, dim, scores);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
  wrong = kTileKernelsAmx;
  wrong.accumulate = [](Element element, const float* weights, const float* values,
                        const float* alpha, int64_t rows, int64_t num_keys, int64_t dim,
                        float* output) {  // the second part of the weights is missing
    std::vector<float> high(weights, weights + rows * kTileKeys);
    for (float& weight : high) weight = static_cast<float>(at::BFloat16(weight));
    kTileKernelsAmx.accumulate(element, high.data(), values, alpha, rows, num_keys, dim, output);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
  wrong.accumulate = [](Element element, const float* weights, const float* values, const float*,
                        int64_t rows, int64_t num_keys, int64_t dim,
                        float* output) {  // what was there is not scaled
    const std::vector<float> ones(static_cast<size_t>(rows), 1.0f);
    kTileKernelsAmx.accumulate(element, weights, values, ones.data(), rows, num_keys, dim, output);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
  wrong.accumulate = [](Element element, const float* weights, const float* values,
                        const float* alpha, int64_t rows, int64_t num_keys, int64_t dim,
                        float* output) {  // the last key is missing
    kTileKernelsAmx.accumulate(element, weights, values, alpha, rows, num_keys - 1, dim, output);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
}

}  // namespace
}  // namespace testing
}  // namespace blockscope
