// Products with weights that were laid out once, compared with float64 and with each other.
#include "kernels/cpu/packed_matrix.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "kernels/row_ops.h"

namespace blockscope::testing {
namespace {

class PackedMatrixOf : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    if (!PackedMatrix::fits(at::zeros({1, 2}, GetParam()))) {
      GTEST_SKIP() << "this CPU has no kernel for the dtype";
    }
  }

  at::Tensor random(at::IntArrayRef shape) const { return at::randn(shape).to(GetParam()); }

  /// What one rounding of the result may take.
  double rounding() const { return GetParam() == at::kFloat ? 1.2e-7 : 1.0 / 256; }
};

// One rounding of the result, and those of float32 sums.
void expect_near(const at::Tensor& got, const at::Tensor& x, const at::Tensor& w,
                 const at::Tensor& bias, double rounding) {
  const at::Tensor x64 = x.to(at::kDouble);
  const at::Tensor w64 = w.to(at::kDouble);
  at::Tensor exact = at::linear(x64, w64);
  if (bias.defined()) exact = exact + bias.to(at::kDouble);
  const at::Tensor allowed = exact.abs() * rounding + 5e-7 * at::linear(x64.abs(), w64.abs());
  EXPECT_LT(((got.to(at::kDouble) - exact).abs() / allowed).max().item<double>(), 1.0)
      << x.sizes() << " times " << w.sizes();
}

TEST_P(PackedMatrixOf, EqualsFloat64) {
  // Tiles of one to twelve rows, panels that are full and that end early, one panel and many,
  // depths of whole chunks and a step more.
  for (const auto& [out, in] :
       {std::pair{1, 2}, {31, 6}, {32, 64}, {33, 130}, {40, 512}, {33, 514}, {500, 1000}}) {
    const at::Tensor weight = random({out, in});
    const at::Tensor bias = random({out});
    const PackedMatrix plain(weight);
    const PackedMatrix biased(weight, bias);
    for (int64_t rows = 1; rows <= 27; ++rows) {
      const at::Tensor x = random({rows, in});
      expect_near(plain(x), x, weight, {}, rounding());
      expect_near(biased(x), x, weight, bias, rounding());
    }
  }
}

TEST_P(PackedMatrixOf, GivesARowTheSameBitsWhateverIsBesideIt) {
  const at::Tensor weight = random({1000, 770});
  const PackedMatrix matrix(weight);
  const at::Tensor x = random({70, 770});
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const at::Tensor all = matrix(x);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(matrix(x), all)) << "threads";
  at::set_num_threads(before);
  for (const int64_t count : {1, 2, 5, 13, 31}) {
    EXPECT_TRUE(at::equal(matrix(x.narrow(0, 7, count)), all.narrow(0, 7, count))) << count;
  }
}

TEST_P(PackedMatrixOf, TakesRowsAsTheyLie) {
  const PackedMatrix matrix(random({40, 48}));
  const at::Tensor x = random({3, 48, 5}).transpose(1, 2);  // [3, 5, 48], columns apart
  const at::Tensor got = matrix(x);
  EXPECT_EQ(got.sizes(), (std::vector<int64_t>{3, 5, 40}));
  EXPECT_TRUE(at::equal(got, matrix(x.contiguous())));
  EXPECT_TRUE(at::equal(matrix(x.select(1, 2)), got.select(1, 2)));
  EXPECT_EQ(matrix(x.narrow(1, 0, 0)).sizes(), (std::vector<int64_t>{3, 0, 40}));
}

TEST_P(PackedMatrixOf, SwigluIsTheChainOfItsParts) {
  for (const int64_t out : {5, 16, 100}) {
    const at::Tensor gate = random({out, 96}) / 8;
    const at::Tensor up = random({out, 96}) / 8;
    const PackedMatrix both = PackedMatrix::gated(gate, up);
    for (const int64_t rows : {1, 12, 30}) {
      const at::Tensor x = random({rows, 96});
      const at::Tensor expected = silu_multiply(PackedMatrix(gate)(x), PackedMatrix(up)(x));
      EXPECT_TRUE(at::equal(both(x), expected)) << out << ", " << rows << " rows";
    }
  }
}

TEST_P(PackedMatrixOf, ManyMatricesAtOnceAreEachByItself) {
  std::vector<PackedMatrix> experts;
  std::vector<MatrixRows> parts;
  const std::vector<int64_t> rows{3, 0, 17, 1, 12, 0};
  for (size_t e = 0; e < rows.size(); ++e) experts.emplace_back(random({70, 64}));
  for (size_t e = 0; e < rows.size(); ++e) parts.push_back({&experts[e], rows[e]});
  const at::Tensor x = random({33, 64});
  const at::Tensor got = packed_products(x, parts);
  int64_t begin = 0;
  for (size_t e = 0; e < rows.size(); ++e) {
    const at::Tensor mine = experts[e](x.narrow(0, begin, rows[e]));
    EXPECT_TRUE(at::equal(got.narrow(0, begin, rows[e]), mine)) << e;
    begin += rows[e];
  }
  EXPECT_EQ(packed_products(x.narrow(0, 0, 0), std::array{MatrixRows{experts.data(), 0}}).numel(),
            0);
}

TEST_P(PackedMatrixOf, SeveralOfOneInputAreEachByItself) {
  const PackedMatrix wide(random({300, 64}), random({300}));
  const PackedMatrix narrow(random({33, 64}));
  const PackedMatrix gated = PackedMatrix::gated(random({50, 64}), random({50, 64}));
  for (const int64_t rows : {0, 1, 40}) {
    const at::Tensor x = random({2, rows, 64});
    const auto got = packed_products(x, {&wide, &narrow, &gated});
    ASSERT_EQ(got.size(), 3U);
    EXPECT_EQ(got[0].sizes(), (std::vector<int64_t>{2, rows, 300}));
    EXPECT_TRUE(at::equal(got[0], wide(x)));
    EXPECT_TRUE(at::equal(got[1], narrow(x)));
    EXPECT_TRUE(at::equal(got[2], gated(x)));
  }
  const PackedMatrix deeper(random({32, 66}));
  EXPECT_THROW(packed_products(random({4, 64}), {&wide, &deeper}), c10::Error);
}

TEST_P(PackedMatrixOf, KeepsInfinityAndNaNInTheirRowsAndColumns) {
  const at::Tensor weight = at::ones({40, 8}, GetParam());
  at::Tensor x = at::ones({3, 8}, GetParam());
  x[1][4] = std::numeric_limits<double>::quiet_NaN();
  x[2][0] = std::numeric_limits<double>::infinity();
  const at::Tensor got = PackedMatrix(weight)(x);
  EXPECT_TRUE((got[0] == 8).all().item<bool>());
  EXPECT_TRUE(got[1].isnan().all().item<bool>());
  EXPECT_TRUE(got[2].isinf().all().item<bool>());
}

TEST_P(PackedMatrixOf, RefusesWhatDoesNotFit) {
  const PackedMatrix matrix(random({40, 48}));
  EXPECT_THROW(matrix(random({3, 46})), c10::Error);
  EXPECT_THROW(matrix(at::zeros({3, 48}, at::kDouble)), c10::Error);
  EXPECT_THROW(PackedMatrix(random({40, 48}), random({41})), c10::Error);
  EXPECT_THROW(PackedMatrix::gated(random({40, 48}), random({40, 46})), c10::Error);
  EXPECT_THROW(PackedMatrix(at::zeros({4, 4}, at::kDouble)), c10::Error);
  const PackedMatrix other(random({41, 48}));
  EXPECT_THROW(
      packed_products(random({2, 48}), std::array{MatrixRows{&matrix, 1}, MatrixRows{&other, 1}}),
      c10::Error);
  EXPECT_THROW(packed_products(random({2, 48}), std::array{MatrixRows{&matrix, 1}}), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(DTypes, PackedMatrixOf, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

}  // namespace
}  // namespace blockscope::testing
