// Cosines of rows, and squares that are kept from one pair to the next: bit for bit those of each
// row alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "analysis/math/cosine.h"
#include "analysis/math/row_products.h"

namespace blockscope {
namespace {

constexpr std::size_t kArrays = 3;

struct Rows {
  std::array<std::vector<std::uint16_t>, kArrays> words;
  std::array<std::vector<float>, kArrays> floats;
};

Rows random_rows(std::size_t rows, std::size_t dim) {
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + dim));
  std::normal_distribution<float> normal;
  Rows result;
  for (std::size_t a = 0; a < kArrays; ++a) {
    for (std::size_t i = 0; i < rows * dim; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(normal(random));
      result.words[a].push_back(static_cast<std::uint16_t>(bits >> 16U));
      result.floats[a].push_back(std::bit_cast<float>(bits));
    }
  }
  return result;
}

template <typename Element, typename Products, typename Cosines>
void check(const std::array<std::vector<Element>, kArrays>& x, std::size_t rows, std::size_t dim,
           Products products, Cosines cosines) {
  std::vector<float> squares(rows);
  for (std::size_t pair = 0; pair + 1 < kArrays; ++pair) {
    const Element* a = x[pair].data();
    const Element* b = x[pair + 1].data();
    std::vector<RowProducts> all(rows);
    products(a, b, rows, dim, all.data());
    std::vector<double> apart(rows);
    cosines(a, b, rows, dim, nullptr, nullptr, apart.data());
    std::vector<double> kept(rows);
    cosines(a, b, rows, dim, pair == 0 ? nullptr : squares.data(), squares.data(), kept.data());
    for (std::size_t i = 0; i < rows; ++i) {
      RowProducts one{};
      products(a + i * dim, b + i * dim, 1, dim, &one);
      EXPECT_EQ(all[i].dot, one.dot) << i;
      EXPECT_EQ(all[i].square_a, one.square_a) << i;
      EXPECT_EQ(all[i].square_b, one.square_b) << i;
      EXPECT_EQ(squares[i], one.square_b) << i;
      const double cosine =
          double{one.dot} / std::sqrt(double{one.square_a} * double{one.square_b});
      EXPECT_EQ(apart[i], cosine) << i;
      EXPECT_EQ(kept[i], cosine) << i;
    }
  }
}

TEST(RowCosines, AreThoseOfEachRowAlone) {
  std::size_t count = 0;
  const RowProductKernels* const* variants = available_row_products(&count);
  for (std::size_t v = 0; v < count; ++v) {
    for (const std::size_t rows : {1U, 3U, 16U, 32U, 45U}) {
      for (const std::size_t dim : {1U, 8U, 33U, 64U, 128U, 200U}) {
        SCOPED_TRACE(::testing::Message()
                     << variants[v]->instruction_set << ", " << rows << " rows of " << dim);
        const Rows x = random_rows(rows, dim);
        check(x.words, rows, dim, variants[v]->bf16, variants[v]->cosines_bf16);
        check(x.floats, rows, dim, variants[v]->f32, variants[v]->cosines_f32);
      }
    }
  }
}

TEST(RowCosines, AreNoneWhereASquareLeavesTheRange) {
  constexpr std::size_t kRows = 37;
  constexpr std::size_t kDim = 128;
  std::size_t count = 0;
  const RowProductKernels* const* variants = available_row_products(&count);
  for (std::size_t v = 0; v < count; ++v) {
    for (const float bad : {0.0F, 1e-14F, 1e19F, INFINITY, NAN}) {
      std::vector<float> a(kRows * kDim, 1.0F);
      std::vector<float> b(kRows * kDim, 2.0F);
      for (const std::size_t row : {5UL, 36UL}) std::fill_n(&a[row * kDim], kDim, bad);
      for (const std::size_t row : {0UL, 20UL}) std::fill_n(&b[row * kDim], kDim, bad);
      std::vector<double> cosines(kRows);
      variants[v]->cosines_f32(a.data(), b.data(), kRows, kDim, nullptr, nullptr, cosines.data());
      for (std::size_t i = 0; i < kRows; ++i) {
        const bool out = i == 5 || i == 36 || i == 0 || i == 20;
        EXPECT_EQ(std::isnan(cosines[i]), out) << variants[v]->instruction_set << " " << bad;
        if (!out) {
          EXPECT_EQ(cosines[i], 1.0);
        }
      }
    }
  }
}

/// Kept squares change nothing, also where vectors have no length or a NaN.
TEST(RowCosines, OfPairsInARowDoNotDependOnWhatIsKept) {
  constexpr std::size_t kPositions = 5;
  constexpr std::size_t kColumns = 7;
  Rows x = random_rows(kPositions * kColumns, 64);
  for (std::vector<float>& values : x.floats) {
    std::fill_n(values.begin(), 64, 0.0F);
    values[100] = NAN;
  }
  const auto view = [](const std::vector<float>& values) {
    return ArrayView{reinterpret_cast<const std::byte*>(values.data()), values.size(),
                     ViewType::f32};
  };
  const std::vector<std::uint8_t> valid{1, 1, 1, 0, 1};
  KeptSquares kept;
  for (std::size_t pair = 0; pair + 1 < kArrays; ++pair) {
    std::vector<CosineSum> with;
    std::vector<CosineSum> without;
    sum_cosines(view(x.floats[pair]), view(x.floats[pair + 1]), kColumns, valid, valid, with,
                &kept);
    sum_cosines(view(x.floats[pair]), view(x.floats[pair + 1]), kColumns, valid, valid, without);
    for (std::size_t column = 0; column < kColumns; ++column) {
      EXPECT_EQ(with[column].sum, without[column].sum);
      EXPECT_EQ(with[column].terms, without[column].terms);
      EXPECT_EQ(with[column].zero, column == 0 ? 1 : 0);
      EXPECT_EQ(with[column].non_finite, column == 0 ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace blockscope
