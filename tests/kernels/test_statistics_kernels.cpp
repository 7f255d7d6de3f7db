// What a recorder sums over rows, on every instruction set of this machine, beside plain float64
// loops.
#include "kernels/statistics_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu_support.h"
#include "kernels/instruction_set.h"

namespace blockscope::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<const StatisticsKernels*> variants() {
  std::vector<const StatisticsKernels*> all{&kStatisticsKernelsBaseline};
#if defined(__x86_64__)
  if (has_avx2()) all.push_back(&kStatisticsKernelsAvx2);
  if (has_avx512()) all.push_back(&kStatisticsKernelsAvx512);
#endif
  return all;
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
      ErrorSums sums;
      kernels->add_merge_error({data(rows[0]), data(rows[1]), data(rows[2]), 0.3F, 0.6F}, dim,
                               &sums);
      const double source = 0.3F;
      const double external = 0.6F;
      const at::Tensor ref = exact[2] + external * (exact[1] - exact[2]);
      const at::Tensor got = exact[2] + source * (exact[0] - exact[2]);
      const double scale = 1e-6 * static_cast<double>(dim) * 20;
      EXPECT_NEAR(sums.squared, number((got - ref).square().sum()), scale);
      EXPECT_NEAR(sums.absolute, number((got - ref).abs().sum()), scale);
      EXPECT_NEAR(sums.reference, number(ref.square().sum()), scale);
      EXPECT_NEAR(sums.dot, number((ref * got).sum()), scale);
      at::Tensor difference = rows[3].clone();
      EXPECT_NEAR(kernels->distance(data(rows[0]), data(rows[1]), dim,
                                    difference.mutable_data_ptr<float>()),
                  number((exact[0] - exact[1]).norm()), 1e-5);
      EXPECT_TRUE(at::allclose(difference, rows[3] + (rows[0] - rows[1]), 1e-6, 1e-6));
    }
    const std::vector<float> nothing(16, 0.0F);
    EXPECT_EQ(kernels->cosine(nothing.data(), nothing.data(), 16), 0.0);
  }
}

TEST(StatisticsKernels, UnitVectorsOfEveryType) {
  at::manual_seed(4);
  for (const StatisticsKernels* kernels : variants()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t dim : {1, 5, 48, 130}) {
        const at::Tensor x = at::randn({dim}).to(type);
        at::Tensor unit = at::empty({dim});
        kernels->normalise(element_of(x), x.const_data_ptr(), dim, unit.mutable_data_ptr<float>());
        const at::Tensor exact = x.to(at::kDouble) / x.to(at::kDouble).norm();
        EXPECT_TRUE(at::allclose(unit.to(at::kDouble), exact, 1e-6, 1e-7)) << kernels->name;
        const at::Tensor zero = at::zeros_like(x);
        kernels->normalise(element_of(x), zero.const_data_ptr(), dim,
                           unit.mutable_data_ptr<float>());
        EXPECT_TRUE(at::equal(unit, at::zeros({dim})));
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
    const at::Tensor first = at::tensor({0.0F, -kInfinity, 1.0F});
    const at::Tensor now = at::tensor({0.5F, -kInfinity, 0.5F});
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
