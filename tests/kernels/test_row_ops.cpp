// Operators on a decoder's rows between the products, compared with the ATen operators that it
// replaces, in every dtype, and on every instruction set of this machine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_support.h"
#include "kernels/row_ops.h"
#include "kernels/simd/row_kernels.h"

namespace blockscope::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

at::Tensor random_rows(at::IntArrayRef shape, at::ScalarType type, double spread = 2.0) {
  return (at::randn(shape) * spread).to(type);
}

/// Equal to a rounding of float32, or in a narrow type to one unit in the last place, which only a
/// result on the border of two numbers may differ. `roundings` to the narrow type one after the
/// other may add up.
::testing::AssertionResult same_rows(const at::Tensor& got, const at::Tensor& expected,
                                     int roundings = 1) {
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) {
    return ::testing::AssertionFailure() << "another shape or dtype";
  }
  if (!got.is_contiguous()) return ::testing::AssertionFailure() << "not contiguous";
  const bool narrow = got.scalar_type() != at::kFloat;
  const double unit = got.scalar_type() == at::kBFloat16 ? 0x1.0p-7 : 0x1.0p-10;
  const at::Tensor difference = (got.to(at::kDouble) - expected.to(at::kDouble)).abs();
  const at::Tensor allowed =
      expected.to(at::kDouble).abs() * (narrow ? roundings * unit : 2e-6) + (narrow ? 1e-7 : 1e-6);
  if (!(difference <= allowed).all().item<bool>()) {
    return ::testing::AssertionFailure()
           << "largest difference " << difference.max().item<double>();
  }
  const double off = (difference > 0).to(at::kDouble).mean().item<double>();
  if (narrow && off > 0.01) return ::testing::AssertionFailure() << off << " of all differ";
  return ::testing::AssertionSuccess();
}

at::Tensor norm_chain(const at::Tensor& x, const at::Tensor& weight, double eps, bool first) {
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + eps);
  if (first) return (normed * weight.to(at::kFloat)).to(x.scalar_type());
  return normed.to(x.scalar_type()) * weight;
}

at::Tensor rotate_chain(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t turning = cos.size(-1);
  const at::Tensor all = x.to(cos.scalar_type());
  const at::Tensor part = all.narrow(-1, 0, turning);
  const int64_t half = turning / 2;
  const at::Tensor turned = at::cat({-part.narrow(-1, half, half), part.narrow(-1, 0, half)}, -1);
  const at::Tensor rest = all.narrow(-1, turning, x.size(-1) - turning);
  return at::cat({part * cos + turned * sin, rest}, -1).to(x.scalar_type());
}

class RowOps : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }
};

TEST_P(RowOps, NormEqualsTheChain) {
  for (const int64_t width : {1, 5, 16, 33, 64, 130, 768, 1500}) {
    const at::Tensor weight = random_rows({width}, GetParam(), 1.0);
    for (const bool first : {false, true}) {
      const at::Tensor x = random_rows({3, 7, width}, GetParam());
      EXPECT_TRUE(same_rows(rms_norm_rows(x, weight, 1e-6, first),
                            norm_chain(x, weight, 1e-6, first), first ? 1 : 2))
          << width << " " << first;
      const at::Tensor heads = random_rows({2, 6, 3, width}, GetParam()).transpose(1, 2);
      EXPECT_TRUE(same_rows(rms_norm_rows(heads, weight, 1e-5, first),
                            norm_chain(heads, weight, 1e-5, first).contiguous(), first ? 1 : 2))
          << width << " heads";
    }
  }
}

TEST_P(RowOps, RotationEqualsTheChain) {
  for (const auto& [turning, dim] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 2}, {10, 10}, {64, 64}, {34, 48}, {32, 128}, {128, 128}, {32, 1040}}) {
    for (const int64_t sequences : {1, 2}) {
      const at::Tensor x = random_rows({2, 5, 3, dim}, GetParam()).transpose(1, 2);
      const at::Tensor angle = at::randn({sequences, 1, 5, turning});
      for (const at::ScalarType table : {at::kFloat, GetParam()}) {
        const at::Tensor cos = angle.cos().to(table);
        const at::Tensor sin = angle.sin().to(table);
        EXPECT_TRUE(same_rows(rotate_rows(x, cos, sin), rotate_chain(x, cos, sin).contiguous()))
            << turning << " of " << dim << ", table " << table;
      }
    }
  }
}

TEST_P(RowOps, SumAndItsNormEqualTheChain) {
  for (const int64_t width : {1, 33, 768, 2050}) {
    const at::Tensor weight = random_rows({width}, GetParam(), 1.0);
    const at::Tensor x = random_rows({3, 7, width}, GetParam());
    const at::Tensor y = random_rows({3, 7, width}, GetParam());
    const SumAndNorm got = add_rms_norm_rows(x, y, weight, 1e-6, false);
    EXPECT_TRUE(at::equal(got.sum, x + y)) << width;
    EXPECT_TRUE(at::equal(got.norm, rms_norm_rows(x + y, weight, 1e-6, false))) << width;
    EXPECT_THROW(add_rms_norm_rows(x, y.slice(1, 1), weight, 1e-6, false), c10::Error);
  }
}

TEST_P(RowOps, NormAndRotationOfAllHeadsAreThoseOfEach) {
  for (const auto& [dim, turning] : std::vector<std::pair<int64_t, int64_t>>{
           {10, 10}, {10, 6}, {48, 48}, {128, 128}, {128, 64}, {1200, 1200}, {1200, 400}}) {
    const at::Tensor q = random_rows({2, 5, 6, dim}, GetParam()).transpose(1, 2);
    const at::Tensor k = random_rows({2, 5, 2, dim}, GetParam()).transpose(1, 2);
    const at::Tensor weight = random_rows({dim}, GetParam(), 1.0);
    const at::Tensor angle = at::randn({2, 1, 5, turning});
    const at::Tensor cos = angle.cos().to(GetParam());
    const at::Tensor sin = angle.sin().to(GetParam());
    const auto got = norm_rotate_rows({{q, weight, 1e-6, true}, {k, {}, 0.0, false}}, cos, sin);
    ASSERT_EQ(got.size(), 2U);
    EXPECT_TRUE(at::equal(got[0], rotate_rows(rms_norm_rows(q, weight, 1e-6, true), cos, sin)));
    EXPECT_TRUE(at::equal(got[1], rotate_rows(k, cos, sin)));
    EXPECT_THROW(norm_rotate_rows({{q, weight.slice(0, 1), 1e-6, true}}, cos, sin), c10::Error);
  }
}

TEST_P(RowOps, GateEqualsTheChain) {
  for (const int64_t width : {1, 5, 33, 3072}) {
    const at::Tensor gate = random_rows({2, 9, width}, GetParam(), 8.0);
    const at::Tensor up = random_rows({2, 9, width}, GetParam());
    EXPECT_TRUE(same_rows(silu_multiply(gate, up), at::silu(gate) * up)) << width;
  }
  const at::Tensor far = at::tensor({-200.0F, 200.0F, 0.0F, kNaN}).to(GetParam()).view({1, 4});
  const at::Tensor made = silu_multiply(far, at::ones_like(far));
  EXPECT_LT(std::abs(made[0][0].item<float>()), 1e-30F);
  EXPECT_EQ(made[0][1].item<float>(), far[0][1].item<float>());
  EXPECT_EQ(made[0][2].item<float>(), 0.0F);
  EXPECT_TRUE(std::isnan(made[0][3].item<float>()));
}

/// The same rows elsewhere: not at multiples of 16 bytes, and far apart.
at::Tensor moved(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() += 5;
  return at::full(sizes, kNaN, x.options()).narrow(-1, 1, x.size(-1)).copy_(x);
}

TEST_P(RowOps, WhereRowsLieChangesNoBit) {
  for (const int64_t width : {5, 16, 72, 2048}) {
    const at::Tensor x = random_rows({2, 3, 4, width}, GetParam());
    const at::Tensor y = random_rows({2, 3, 4, width}, GetParam());
    const at::Tensor weight = random_rows({width}, GetParam(), 1.0);
    const at::Tensor angle = at::randn({2, 1, 4, width / 4 * 2});
    const auto all = [&](const auto& place) {
      const SumAndNorm both = add_rms_norm_rows(place(x), place(y), place(weight), 1e-6, true);
      std::vector<at::Tensor> made{rms_norm_rows(place(x), place(weight), 1e-6, false), both.sum,
                                   both.norm, silu_multiply(place(x), place(y))};
      for (const at::ScalarType table : {at::kFloat, GetParam()}) {
        for (const at::Tensor& turned :
             norm_rotate_rows({{place(x), place(weight), 1e-6, false}, {place(y), {}, 0.0, false}},
                              place(angle.cos().to(table)), place(angle.sin().to(table)))) {
          made.push_back(turned);
        }
      }
      return made;
    };
    const std::vector<at::Tensor> expected = all([](const at::Tensor& t) { return t; });
    const std::vector<at::Tensor> got = all(moved);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], expected[i])) << width << " result " << i;
    }
  }
}

TEST_P(RowOps, NaNStaysInItsRow) {
  for (const int64_t width : {24, 2048}) {
    const at::Tensor clean = random_rows({1, 2, 9, width}, GetParam());
    at::Tensor x = clean.clone();
    x[0][1][3][width - 1] = kNaN;
    const at::Tensor weight = random_rows({width}, GetParam(), 1.0);
    const at::Tensor angle = at::randn({1, 1, 9, width});
    const auto all = [&](const at::Tensor& rows) {
      const SumAndNorm both = add_rms_norm_rows(clean, rows, weight, 1e-6, true);
      return std::vector<at::Tensor>{
          rms_norm_rows(rows, weight, 1e-6, false), both.norm,
          norm_rotate_rows({{rows, weight, 1e-6, false}}, angle.cos(), angle.sin()).front()};
    };
    const std::vector<at::Tensor> expected = all(clean);
    const std::vector<at::Tensor> got = all(x);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(got[i][0][1][3].isnan().all().item<bool>()) << width << " result " << i;
      got[i][0][1][3] = expected[i][0][1][3];
      EXPECT_TRUE(at::equal(got[i], expected[i])) << width << " result " << i;
    }
    const at::Tensor gated = silu_multiply(x, clean);
    EXPECT_TRUE(gated[0][1][3][width - 1].isnan().item<bool>());
    EXPECT_EQ(gated.isnan().sum().item<int64_t>(), 1);
  }
}

TEST_P(RowOps, BestTokenIsTheFirstOfTheLargestWithItsProbability) {
  for (const int64_t vocab : {1, 5, 16, 33, 1000, 32769}) {
    const at::Tensor logits = random_rows({6, vocab}, GetParam(), 3.0);
    const BestTokens best = best_tokens(logits);
    const at::Tensor exact = at::softmax(logits.to(at::kDouble), -1);
    for (int64_t r = 0; r < 6; ++r) {
      const int64_t token = best.token[static_cast<size_t>(r)];
      const at::Tensor row = logits[r].to(at::kFloat);
      EXPECT_EQ((row == row.max()).nonzero()[0].item<int64_t>(), token)
          << vocab;  // ties: the first
      const double expected = exact[r][token].item<double>();
      EXPECT_NEAR(best.probability[static_cast<size_t>(r)], expected, 2e-6 * expected) << vocab;
    }
  }
}

TEST_P(RowOps, BestTokenOfRowsThatAreNotFinite) {
  const at::Tensor rows = at::zeros({4, 40});
  rows[0][7] = kNaN;
  rows[1][39] = kInf;
  rows[2].fill_(-kInf);
  rows[3][0] = -kInf;  // a filtered token: the others share the whole
  const BestTokens best = best_tokens(rows.to(GetParam()));
  for (size_t r = 0; r < 3; ++r) EXPECT_TRUE(std::isnan(best.probability[r])) << r;
  EXPECT_EQ(best.token[3], 1);
  EXPECT_NEAR(best.probability[3], 1.0 / 39, 1e-7);
}

TEST_P(RowOps, TokenOddsAreThoseOfFloat64) {
  for (const int64_t vocab : {1, 5, 16, 33, 1000, 32769, 151936}) {
    const at::Tensor logits = random_rows({6, vocab}, GetParam(), 3.0);
    logits[5] *= 20.0;  // nearly sure of one token
    logits[4][vocab - 1] = -kInf;
    const std::vector<int64_t> tokens{0, vocab / 2, vocab - 1, vocab / 3, vocab / 4, vocab / 5};
    const TokenOdds odds = token_odds(logits, tokens);
    const at::Tensor exact = at::softmax(logits.to(at::kDouble), -1);
    for (int64_t r = 0; r < 6; ++r) {
      if (vocab == 1 && r == 4) continue;  // no token can come
      const auto at = static_cast<size_t>(r);
      const at::Tensor own = logits[r][tokens[at]];
      EXPECT_EQ(odds.rank[at], (logits[r] > own).sum().item<int64_t>()) << vocab << " row " << r;
      const double p = exact[r][tokens[at]].item<double>();
      // float32 has no normal number below 1e-38.
      EXPECT_NEAR(odds.probability[at], p, 1e-5 * p + 2e-38) << vocab << " row " << r;
      const double entropy = -at::xlogy(exact[r], exact[r]).sum().item<double>();
      EXPECT_NEAR(odds.entropy[at], entropy, 3e-6 * std::max(1.0, entropy))
          << vocab << " row " << r;
    }
  }
}

TEST_P(RowOps, TokenOddsOfRowsThatAreNotFinite) {
  const at::Tensor rows = at::zeros({4, 40});
  rows[0][7] = kNaN;
  rows[1][39] = kInf;
  rows[2].fill_(-kInf);
  rows[3][0] = -kInf;
  const TokenOdds odds = token_odds(rows.to(GetParam()), {1, 1, 1, 0});
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(std::isnan(odds.probability[r])) << r;
    EXPECT_TRUE(std::isnan(odds.entropy[r])) << r;
  }
  EXPECT_EQ(odds.rank[3], 39);
  EXPECT_EQ(odds.probability[3], 0.0F);
  EXPECT_NEAR(odds.entropy[3], std::log(39.0), 1e-6);
}

TEST(RowOpsCheck, WrongArgumentsAreNamed) {
  const at::Tensor x = at::zeros({2, 8});
  EXPECT_THROW(rms_norm_rows(x, at::zeros({7}), 1e-6, false), c10::Error);
  EXPECT_THROW(rms_norm_rows(x, at::zeros({8}, at::kHalf), 1e-6, false), c10::Error);
  EXPECT_THROW(rms_norm_rows(x.t(), at::zeros({2}), 1e-6, false), c10::Error);
  EXPECT_THROW(rms_norm_rows(x.to(at::kDouble), at::zeros({8}, at::kDouble), 1e-6, false),
               c10::Error);
  const at::Tensor heads = at::zeros({1, 2, 3, 8});
  EXPECT_THROW(rotate_rows(heads, at::zeros({1, 1, 3, 7}), at::zeros({1, 1, 3, 7})), c10::Error);
  EXPECT_THROW(rotate_rows(heads, at::zeros({1, 1, 4, 8}), at::zeros({1, 1, 4, 8})), c10::Error);
  const at::Tensor pair = at::zeros({2, 2, 3, 8});
  EXPECT_THROW(rotate_rows(pair, at::zeros({2, 1, 3, 8}), at::zeros({1, 1, 3, 8})), c10::Error);
  EXPECT_THROW(silu_multiply(x, at::zeros({2, 7})), c10::Error);
  EXPECT_THROW(best_tokens(heads), c10::Error);
  EXPECT_THROW(token_odds(x, {0}), c10::Error);
  EXPECT_THROW(token_odds(x, {0, 8}), c10::Error);
  EXPECT_THROW(token_odds(x, {-1, 0}), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(DTypes, RowOps, ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

/// Every instruction set writes the same as the best one, and nothing after the row.
class RowKernelsOn : public ::testing::TestWithParam<int64_t> {};

TEST_P(RowKernelsOn, EqualTheBestAndWriteNothingOutside) {
  const LoopVariants<RowKernels>& all = available_row_kernels();
  const auto variant = static_cast<size_t>(GetParam());
  if (variant >= all.count) GTEST_SKIP() << "this machine has " << all.count << " instruction sets";
  const RowKernels& kernels = *all.variants.at(variant);
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {2, 6, 30, 64, 130}) {
      const at::Tensor x = random_rows({1, dim}, type);
      const at::Tensor other = random_rows({1, dim}, type, 1.0);
      const Element element = element_of(x);
      const int64_t bytes = dim * x.element_size();
      const auto made = [&](const auto& call) {
        std::vector<char> memory(static_cast<size_t>(bytes) + 64, 0x5a);
        call(memory.data());
        for (size_t i = static_cast<size_t>(bytes); i < memory.size(); ++i) {
          EXPECT_EQ(memory[i], 0x5a) << kernels.name << " wrote behind its row of " << dim;
        }
        at::Tensor row = at::empty_like(x);
        std::memcpy(row.data_ptr(), memory.data(), static_cast<size_t>(bytes));
        return row;
      };
      const void* in = x.const_data_ptr();
      const void* second = other.const_data_ptr();
      EXPECT_TRUE(same_rows(
          made([&](void* out) { kernels.rms_norm(element, in, second, dim, 1e-6F, false, out); }),
          norm_chain(x, other, 1e-6, false)));
      EXPECT_TRUE(
          same_rows(made([&](void* out) { kernels.silu_multiply(element, in, second, dim, out); }),
                    at::silu(x) * other));
      const at::Tensor view = x.view({1, 1, 1, dim});
      const at::Tensor table = other.view({1, 1, 1, dim});
      EXPECT_TRUE(same_rows(made([&](void* out) {
                              kernels.rotate(element, in, element, second, second, dim, dim, out);
                            }),
                            rotate_chain(view, table, table).view({1, dim})));
      int64_t token = -1;
      float probability = 0.0F;
      kernels.best(element, in, dim, &token, &probability);
      const BestTokens best = best_tokens(x);
      EXPECT_EQ(token, best.token[0]);
      EXPECT_NEAR(probability, best.probability[0], 1e-6);
      int64_t rank = -1;
      float entropy = 0.0F;
      kernels.odds(element, in, dim, dim - 1, &rank, &probability, &entropy);
      const TokenOdds odds = token_odds(x, {dim - 1});
      EXPECT_EQ(rank, odds.rank[0]);
      EXPECT_NEAR(probability, odds.probability[0], 1e-6);
      EXPECT_NEAR(entropy, odds.entropy[0], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RowKernelsOn, ::testing::Range<int64_t>(0, 3));

}  // namespace
}  // namespace blockscope::testing
