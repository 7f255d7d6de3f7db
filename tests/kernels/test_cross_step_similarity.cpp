// cross_step_similarity against the float64 cosine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

TEST(CrossStepSimilarity, EqualsTheFloat64Cosine) {
  SeededRandom random(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const int64_t dim : {1, 7, 48, 128}) {
      const at::Tensor a = random_tensor({2, 3, 5, dim}, dtype, random);
      const at::Tensor b = a + random_tensor({2, 3, 5, dim}, dtype, random, 0.5);
      const at::Tensor got = cross_step_similarity(a, b);
      ASSERT_EQ(got.scalar_type(), at::kFloat);
      ASSERT_EQ(got.sizes(), at::IntArrayRef({2, 3, 5}));
      std::vector<double> expected;
      const std::vector<Row> left = to_rows(a.view({30, dim}));
      const std::vector<Row> right = to_rows(b.view({30, dim}));
      for (size_t i = 0; i < left.size(); ++i) {
        expected.push_back(cosine_reference(left[i], right[i]));
      }
      EXPECT_TRUE(close_to(to_doubles(got), expected, {1e-14, 1e-7}));
    }
  }
}

TEST(CrossStepSimilarity, OfAVectorWithItselfIsOneAndWithItsNegativeMinusOne) {
  SeededRandom random(2);
  const at::Tensor a = random_tensor({4, 8, 48}, at::kFloat, random, 1e-20);
  EXPECT_TRUE(at::equal(cross_step_similarity(a, a), at::ones({4, 8})));
  EXPECT_TRUE(at::equal(cross_step_similarity(a, a * -2.0), -at::ones({4, 8})));
  const at::Tensor huge = a * 1e30 * 1e25;
  EXPECT_TRUE(at::equal(cross_step_similarity(huge, a), at::ones({4, 8})));
}

TEST(CrossStepSimilarity, IsZeroOnlyForExactlyZeroVectorsAndKeepsNaN) {
  at::Tensor a = at::ones({3, 4});
  const at::Tensor b = at::ones({3, 4});
  a[0].zero_();
  a[1][2] = NAN;
  const at::Tensor got = cross_step_similarity(a, b);
  EXPECT_EQ(got[0].item<float>(), 0.0f);
  EXPECT_TRUE(std::isnan(got[1].item<float>()));
  EXPECT_EQ(got[2].item<float>(), 1.0f);
  EXPECT_EQ(cross_step_similarity(a[0], a[0]).item<float>(), 0.0f);
}

TEST(CrossStepSimilarity, TakesStridedTensorsAndRefusesUnequalOnes) {
  SeededRandom random(3);
  const at::Tensor a = random_tensor({6, 5}, at::kFloat, random);
  const at::Tensor b = random_tensor({6, 5}, at::kFloat, random);
  const at::Tensor got = cross_step_similarity(a.t().contiguous().t(), b.t().contiguous().t());
  EXPECT_TRUE(at::equal(got, cross_step_similarity(a, b)));
  EXPECT_THROW(cross_step_similarity(a, b.slice(1, 1)), c10::Error);
  EXPECT_THROW(cross_step_similarity(a, b.to(at::kHalf)), c10::Error);
  EXPECT_THROW(cross_step_similarity(a.to(at::kInt), b.to(at::kInt)), c10::Error);
}

}  // namespace
}  // namespace blockscope::testing
