// A recorder's sums over rows, on every instruction set of this machine, compared with plain
// float64 loops.
#include "kernels/simd/statistics_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_support.h"

namespace blockscope::testing {
namespace {

constexpr float kEndless = std::numeric_limits<float>::infinity();

std::vector<const StatisticsKernels*> variants() {
  const LoopVariants<StatisticsKernels>& all = available_statistics_kernels();
  return {all.variants.begin(), all.variants.begin() + all.count};
}

const float* data(const at::Tensor& x) { return x.const_data_ptr<float>(); }
double number(const at::Tensor& x) { return x.item<double>(); }

TEST(StatisticsKernels, SumsOverRowsEqualFloat64) {
  at::manual_seed(3);
  for (const StatisticsKernels* kernels : variants()) {
    for (const int64_t dim : {1, 7, 8, 16, 33, 48, 128}) {
      SCOPED_TRACE(::testing::Message() << kernels->name << " dim " << dim);
      const at::Tensor rows = at::randn({4, dim});
      const at::Tensor exact = rows.to(at::kDouble);
      EXPECT_NEAR(kernels->cosine(data(rows[0]), data(rows[1]), dim),
                  number((exact[0] * exact[1]).sum() / (exact[0].norm() * exact[1].norm())), 1e-12);
      // Two rows of the three, the first of them left out by a third one's weight.
      const at::Tensor three = at::randn({3, 3, dim});
      const std::vector<float> source_weight{0.3F, 0.5F, 0.9F};
      const std::vector<float> weight{0.6F, std::numeric_limits<float>::quiet_NaN(), 0.1F};
      const ErrorSums sums = kernels->merge_errors(
          {data(three[0]), data(three[1]), data(three[2]), source_weight.data(), weight.data()}, 3,
          dim);
      const at::Tensor x = three.to(at::kDouble);
      const auto merged = [&](const at::Tensor& side, const std::vector<float>& share) {
        const at::Tensor column =
            at::tensor({static_cast<double>(share[0]), static_cast<double>(share[2])}).view({2, 1});
        const at::Tensor kept = at::tensor({0, 2}, at::kLong);
        const at::Tensor in = x[2].index_select(0, kept);
        return in + column * (side.index_select(0, kept) - in);
      };
      const at::Tensor ref = merged(x[1], weight);
      const at::Tensor got = merged(x[0], source_weight);
      const double scale = 1e-6 * static_cast<double>(dim) * 40;
      EXPECT_NEAR(sums.squared, number((got - ref).square().sum()), scale);
      EXPECT_NEAR(sums.absolute, number((got - ref).abs().sum()), scale);
      EXPECT_NEAR(sums.reference, number(ref.square().sum()), scale);
      EXPECT_NEAR(sums.dot, number((ref * got).sum()), scale);
    }
    const std::vector<float> nothing(16, 0.0F);
    EXPECT_EQ(kernels->cosine(nothing.data(), nothing.data(), 16), 0.0);
  }
}

TEST(StatisticsKernels, KeptErrorsAreToldApartByKind) {
  at::manual_seed(8);
  constexpr int64_t kRows = 37;
  constexpr float kNoKey = -std::numeric_limits<float>::infinity();
  for (const StatisticsKernels* kernels : variants()) {
    for (const int64_t dim : {1, 7, 48, 129}) {
      SCOPED_TRACE(::testing::Message() << kernels->name << " " << dim);
      const at::Tensor three = at::randn({3, kRows, dim});  // source, external, internal
      three[1][5].zero_();
      const at::Tensor weights = at::rand({2, kRows});
      weights[0][3] = std::numeric_limits<float>::quiet_NaN();
      const at::Tensor lses = at::randn({2, kRows});
      lses[0][4] = kNoKey;
      lses[1][6] = kNoKey;
      std::vector<uint8_t> kinds(kRows);
      for (size_t r = 0; r < kinds.size(); ++r) kinds[r] = static_cast<uint8_t>(r * r % 3);
      const MergeRows merge{data(three[0]), data(three[1]), data(three[2]), data(weights[0]),
                            data(weights[1])};
      KeptSums sums[kKindsOfRows];
      const ErrorSums all = kernels->kept_errors(
          merge, {data(lses[0]), data(lses[1]), kinds.data()}, kRows, dim, sums);
      const ErrorSums plain = kernels->merge_errors(merge, kRows, dim);
      const at::Tensor x = three.to(at::kDouble);
      const at::Tensor share = weights.to(at::kDouble).unsqueeze(-1);
      const at::Tensor ref = x[2] + share[1] * (x[1] - x[2]);
      const at::Tensor got = x[2] + share[0] * (x[0] - x[2]);
      const double scale = 1e-6 * static_cast<double>(dim) * 40;
      KeptSums wanted[kKindsOfRows];
      for (int64_t r = 0; r < kRows; ++r) {
        if (r == 3 || r == 4 || r == 6) continue;
        KeptSums& of_kind = wanted[kinds[static_cast<size_t>(r)]];
        const double lengths = number(x[0][r].norm()) * number(x[1][r].norm());
        of_kind.rows += 1.0;
        of_kind.cosine += lengths == 0.0 ? 0.0 : number(x[0][r].dot(x[1][r])) / lengths;
        of_kind.lse += std::abs(number(lses[0][r]) - number(lses[1][r]));
        of_kind.squared += number((got[r] - ref[r]).square().sum());
        of_kind.reference += number(ref[r].square().sum());
      }
      for (size_t kind = 0; kind < kKindsOfRows; ++kind) {
        EXPECT_EQ(sums[kind].rows, wanted[kind].rows);
        EXPECT_NEAR(sums[kind].cosine, wanted[kind].cosine, 1e-5);
        EXPECT_NEAR(sums[kind].lse, wanted[kind].lse, 1e-5);
        EXPECT_NEAR(sums[kind].squared, wanted[kind].squared, scale);
        EXPECT_NEAR(sums[kind].reference, wanted[kind].reference, scale);
      }
      // Rows without a key are in the error all the same.
      EXPECT_NEAR(all.squared, plain.squared, scale);
      EXPECT_NEAR(all.absolute, plain.absolute, scale);
      EXPECT_NEAR(all.reference, plain.reference, scale);
      EXPECT_NEAR(all.dot, plain.dot, scale);
      EXPECT_GT(all.squared, sums[0].squared + sums[1].squared + sums[2].squared);
    }
  }
}

TEST(StatisticsKernels, GapsOfUnitVectorsOfEveryType) {
  at::manual_seed(4);
  for (const StatisticsKernels* kernels : variants()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t dim : {1, 5, 48, 130}) {
        SCOPED_TRACE(::testing::Message() << kernels->name << " " << type << " " << dim);
        const at::Tensor a = (at::randn({dim}) * 7).to(type);
        const at::Tensor b = (at::randn({dim}) / 7).to(type);
        const Element element = element_of(a);
        const auto unit = [](const at::Tensor& x) {
          return x.to(at::kDouble) / x.to(at::kDouble).norm();
        };
        const auto scale_of = [&](const at::Tensor& x) {
          return kernels->unit_scale(element, x.const_data_ptr(), dim);
        };
        EXPECT_TRUE(at::allclose(a.to(at::kDouble) * static_cast<double>(scale_of(a)), unit(a),
                                 1e-6, 1e-7));
        const at::Tensor before = at::randn({dim});
        at::Tensor difference = before.clone();
        const auto gap = [&](const at::Tensor& x, const at::Tensor& y) {
          return kernels->unit_gap(element, x.const_data_ptr(), y.const_data_ptr(), scale_of(y),
                                   dim, difference.mutable_data_ptr<float>());
        };
        EXPECT_NEAR(gap(a, b), number((unit(a) - unit(b)).norm()), 1e-6);
        EXPECT_TRUE(at::allclose(difference.to(at::kDouble),
                                 before.to(at::kDouble) + unit(a) - unit(b), 1e-6, 1e-6));
        EXPECT_NEAR(gap(a, a), 0.0, 1e-6);
        const at::Tensor zero = at::zeros_like(a);
        EXPECT_NEAR(gap(zero, b), 1.0, 1e-6);
        at::Tensor hole = a.clone();
        hole[dim - 1] = std::numeric_limits<float>::quiet_NaN();
        const at::Tensor kept = difference.clone();
        EXPECT_TRUE(std::isnan(gap(hole, b)));
        EXPECT_TRUE(at::equal(difference, kept));
      }
    }
  }
}

TEST(StatisticsKernels, ExternalWeightsOfMerges) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> external{0.0F, 3.0F,   -200.0F, -kEndless, 5.0F,
                                    nan,  700.0F, 1.0F,    -kEndless};
  const std::vector<float> internal{0.0F, 1.0F,    10.0F, 2.0F,     -kEndless,
                                    1.0F, -700.0F, nan,   -kEndless};
  const std::vector<float> expected{0.5F, 0.88079708F, 0.0F, 0.0F, 1.0F, nan, 1.0F, nan, 0.0F};
  for (const StatisticsKernels* kernels : variants()) {
    std::vector<float> weight(external.size());
    kernels->external_weights(external.data(), internal.data(), std::ssize(external),
                              weight.data());
    for (size_t i = 0; i < weight.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << kernels->name << " " << i);
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(weight[i]));
      } else {
        EXPECT_NEAR(weight[i], expected[i], 1e-6F);
      }
    }
  }
}

TEST(StatisticsKernels, DivergenceOfVocabulariesEqualsFloat64) {
  at::manual_seed(5);
  for (const StatisticsKernels* kernels : variants()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t vocab : {1, 15, 97, 1025, 151936}) {
        SCOPED_TRACE(::testing::Message() << kernels->name << " " << type << " " << vocab);
        const at::Tensor first = (at::randn({vocab}) * 4).to(type);
        const at::Tensor p = at::log_softmax(first.to(at::kDouble), -1);
        const Element element = element_of(first);
        const double lse_first = kernels->log_sum_exp(element, first.const_data_ptr(), vocab);
        EXPECT_NEAR(lse_first, number(at::logsumexp(first.to(at::kDouble), {0})), 1e-6);
        for (const double moved : {0.0, 0.01, 3.0}) {
          const at::Tensor now = (first.to(at::kFloat) + at::randn({vocab}) * moved).to(type);
          const at::Tensor q = at::log_softmax(now.to(at::kDouble), -1);
          const double exact = number((p.exp() * (p - q)).sum());
          const double lse = kernels->log_sum_exp(element, now.const_data_ptr(), vocab);
          EXPECT_NEAR(kernels->divergence(element, first.const_data_ptr(), lse_first,
                                          now.const_data_ptr(), lse, vocab),
                      exact, 1e-6 + 1e-6 * exact);
        }
      }
    }
    // What the first distribution leaves out counts nothing, wherever the second has it.
    const at::Tensor first = at::tensor({0.0F, -kEndless, 1.0F});
    const at::Tensor now = at::tensor({0.5F, -kEndless, 0.5F});
    const auto lse = [&](const at::Tensor& x) {
      return kernels->log_sum_exp(Element::kFloat32, data(x), 3);
    };
    const at::Tensor p = at::softmax(at::tensor({0.0, 1.0}, at::kDouble), -1);
    EXPECT_NEAR(
        kernels->divergence(Element::kFloat32, data(first), lse(first), data(now), lse(now), 3),
        number((p * (p.log() - std::log(0.5))).sum()), 1e-6);
  }
}

}  // namespace
}  // namespace blockscope::testing
