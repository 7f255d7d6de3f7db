// RunningMean, StepGrid, MetricResult and the instruction sets of the cosines, against float64
// loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "analysis/math/cosine.h"
#include "analysis/math/row_products.h"
#include "analysis/math/running_mean.h"
#include "analysis/results/export_csv.h"
#include "analysis/results/read_csv.h"
#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

TEST(RunningMean, WeightsByTermsAndKeepsASmallSpread) {
  RunningMean all;
  RunningMean left;
  RunningMean right;
  double sum = 0.0;
  double terms = 0.0;
  std::vector<std::pair<double, std::int64_t>> values;
  for (int i = 0; i < 100; ++i) values.emplace_back(1e9 + i % 7, 1 + i % 3);
  for (const auto& [value, weight] : values) {
    all.add(value, weight);
    (sum == 0.0 ? left : right).add(value, weight);
    sum += value * static_cast<double>(weight);
    terms += static_cast<double>(weight);
  }
  const double mean = sum / terms;
  double squares = 0.0;
  for (const auto& [value, weight] : values) {
    squares += static_cast<double>(weight) * (value - mean) * (value - mean);
  }
  const double deviation = std::sqrt(squares / terms * 100.0 / 99.0);
  left.merge(right);
  for (const RunningMean& found : {all, left}) {
    EXPECT_NEAR(found.mean(), mean, 1e-6);
    EXPECT_NEAR(found.standard_deviation(), deviation, 1e-6);
    EXPECT_NEAR(found.standard_error(), deviation / 10.0, 1e-7);
    EXPECT_EQ(found.terms(), static_cast<std::int64_t>(terms));
  }
}

TEST(RunningMean, LeavesOutWhatIsNotFinite) {
  RunningMean mean;
  EXPECT_TRUE(std::isnan(mean.mean()));
  mean.add(2.0);
  mean.add(kNaN);
  mean.add(std::numeric_limits<double>::infinity());
  mean.add(5.0, 0);
  EXPECT_EQ(mean.mean(), 2.0);
  EXPECT_EQ(mean.values(), 1);
  EXPECT_EQ(mean.non_finite(), 3);
  EXPECT_TRUE(std::isnan(mean.standard_deviation()));
}

ResultArray example() {
  StepGrid grid(2, 3);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t head = 0; head < 3; ++head) {
      for (std::int64_t step = 1; step <= 4; ++step) {
        if (layer == 1 && step == 4) continue;
        grid.add(layer, head, step,
                 static_cast<double>(100 * layer + 10 * head) + static_cast<double>(step), step);
      }
    }
  }
  return grid.means("example", "1", "", {"layer", {2.0, 5.0}, {}}, {"head", {0.0, 1.0, 7.0}, {}});
}

TEST(ResultArray, MeansOverOtherAxesAreWeightedByTerms) {
  const ResultArray array = example();
  EXPECT_TRUE(std::isnan(array.at({1, 0, 3})));
  const ResultArray by_layer = mean_over_others(array, {"layer"});
  EXPECT_DOUBLE_EQ(by_layer.at({0}), 10.0 + (1 + 4 + 9 + 16) / 10.0);
  EXPECT_DOUBLE_EQ(by_layer.at({1}), 110.0 + (1 + 4 + 9) / 6.0);
  EXPECT_THAT(by_layer.terms, ::testing::ElementsAre(30, 18));
  const ResultArray turned = mean_over_others(array, {"step", "layer"});
  EXPECT_EQ(turned.axes[0].name, "step");
  EXPECT_DOUBLE_EQ(turned.at({2, 1}), 113.0);
}

TEST(ResultArray, MeansLeaveOutNaNWhateverItsTerms) {
  ResultArray array = example();
  array.values[0] = kNaN;  // layer 2, head 0, step 1: the value 1 with one term
  const ResultArray mean = mean_over_others(array, {"layer"});
  EXPECT_DOUBLE_EQ(mean.at({0}), (30.0 * 10.0 + 3.0 * (1 + 4 + 9 + 16) - 1.0) / 29.0);
  EXPECT_EQ(mean.terms[0], 29);
}

TEST(CsvField, QuotesWhateverWouldEndAFieldOrALine) {
  EXPECT_EQ(csv_field("plain text"), "plain text");
  EXPECT_EQ(csv_field("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_field("a\"b"), "\"a\"\"b\"");
  EXPECT_EQ(csv_field("a\nb"), "\"a\nb\"");
  EXPECT_EQ(csv_field("a\rb"), "\"a\rb\"");
}

TEST(WriteCsv, KeepsTheOrderOfEveryArraysAxes) {
  const ResultAxis layer{"layer", {0.0, 3.0}, {}}, head{"head", {1.0, 2.0}, {}};
  const ResultAxis who{"who", {}, {"mask", "rest"}};
  AnalysisDocument document;
  document.results.push_back({"a", "a", "", "", "", {}, {}});
  document.results.back().arrays.push_back(
      {"first", "1", "", {layer, head}, {1, 2, 3, 4}, {1, 1, 1, 1}});
  document.results.back().arrays.push_back(
      {"second", "1", "", {who, layer}, {5, 6, 7, 8}, {2, 2, 2, 2}});
  std::stringstream file;
  write_csv(document, file);
  const std::vector<MetricResult> found = parse_results_csv(file, "file");
  ASSERT_EQ(found.size(), 1U);
  ASSERT_EQ(found[0].arrays.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const ResultArray& array = found[0].arrays[i];
    const ResultArray& expected = document.results[0].arrays[i];
    EXPECT_EQ(array.values, expected.values) << i;
    ASSERT_EQ(array.axes.size(), expected.axes.size());
    for (std::size_t a = 0; a < 2; ++a) EXPECT_EQ(array.axes[a].name, expected.axes[a].name) << i;
  }
}

TEST(ResultArray, SelectsByIndexAndSaysWhatThereIs) {
  const ResultArray array = example();
  const ResultArray part = select(array, "head", {7.0, 0.0});
  EXPECT_THAT(part.axes[1].index, ::testing::ElementsAre(0.0, 7.0));
  EXPECT_DOUBLE_EQ(part.at({0, 1, 0}), 21.0);
  EXPECT_EQ(part.terms[3], 4);
  try {
    select(array, "layer", {3.0});
    FAIL() << "expected a refusal";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("layer 3 does not exist; expected one of 2, 5"));
  }
  EXPECT_THROW(select(array, "tau", {1.0}), Error);
}

float widen(std::uint16_t word) { return std::bit_cast<float>(std::uint32_t{word} << 16U); }

class RowProductsOf : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RowProductsOf, AllInstructionSetsMatchDouble) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::size_t count = 0;
  const RowProductKernels* const* variants = available_row_products(&count);
  for (const std::size_t dim : {1U, 3U, 15U, 16U, 37U, 64U, 128U, 200U, 300U}) {
    const std::size_t rows = GetParam();
    constexpr std::size_t kSegments = 3;
    std::vector<std::uint16_t> a(rows * dim * kSegments);
    std::vector<std::uint16_t> b(a.size());
    std::vector<float> fa;
    std::vector<float> fb;
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16U);
      b[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16U);
      fa.push_back(widen(a[i]));
      fb.push_back(widen(b[i]));
    }
    const auto dot = [&](std::size_t i, std::size_t j, std::size_t segments) {
      double sum = 0.0;
      for (std::size_t s = 0; s < segments; ++s) {
        for (std::size_t d = 0; d < dim; ++d) {
          sum += double{fa[(s * rows + i) * dim + d]} * double{fb[(s * rows + j) * dim + d]};
        }
      }
      return sum;
    };
    const auto squares = [&](const std::vector<float>& of, std::size_t i) {
      double sum = 0.0;
      for (std::size_t d = 0; d < dim; ++d)
        sum += double{of[i * dim + d]} * double{of[i * dim + d]};
      return sum;
    };
    const double tolerance = 1e-5 * static_cast<double>(dim);
    for (std::size_t v = 0; v < count; ++v) {
      SCOPED_TRACE(::testing::Message() << variants[v]->instruction_set << " dim " << dim);
      std::vector<RowProducts> words(rows);
      std::vector<RowProducts> values(rows);
      variants[v]->bf16(a.data(), b.data(), rows, dim, words.data());
      variants[v]->f32(fa.data(), fb.data(), rows, dim, values.data());
      std::vector<float> cross_words(rows * rows);
      std::vector<float> cross_values(rows * rows);
      variants[v]->cross_bf16(a.data(), b.data(), rows, dim, kSegments, rows * dim,
                              cross_words.data());
      variants[v]->cross_f32(fa.data(), fb.data(), rows, dim, kSegments, rows * dim,
                             cross_values.data());
      for (std::size_t i = 0; i < rows; ++i) {
        EXPECT_NEAR(words[i].dot, dot(i, i, 1), tolerance);
        EXPECT_NEAR(values[i].dot, dot(i, i, 1), tolerance);
        EXPECT_NEAR(words[i].square_a, squares(fa, i), tolerance);
        EXPECT_NEAR(words[i].square_b, squares(fb, i), tolerance);
        for (std::size_t j = 0; j < rows; ++j) {
          EXPECT_NEAR(cross_words[i * rows + j], dot(i, j, kSegments), tolerance);
          EXPECT_NEAR(cross_values[i * rows + j], dot(i, j, kSegments), tolerance);
        }
      }
    }
  }
}

// One strip, what is left of it, more than a panel, more than a band.
INSTANTIATE_TEST_SUITE_P(Rows, RowProductsOf, ::testing::Values(1, 7, 32, 45, 70));

TEST(MergeError, AllInstructionSetsMatchDouble) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::size_t count = 0;
  const RowProductKernels* const* variants = available_row_products(&count);
  for (const std::size_t dim : {1U, 15U, 16U, 37U, 128U}) {
    std::vector<float> external(dim), internal(dim), source(dim);
    for (auto* values : {&external, &internal, &source}) {
      for (float& value : *values) value = normal(random);
    }
    const double w = 0.7;
    const double w_source = 0.6;
    double squared = 0.0, absolute = 0.0, reference = 0.0, dot = 0.0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double ref = w * double{external[d]} + (1.0 - w) * double{internal[d]};
      const double merged = w_source * double{source[d]} + (1.0 - w_source) * double{internal[d]};
      squared += (merged - ref) * (merged - ref);
      absolute += std::abs(merged - ref);
      reference += ref * ref;
      dot += ref * merged;
    }
    const MergedRow row{external.data(),
                        internal.data(),
                        source.data(),
                        static_cast<float>(w),
                        static_cast<float>(w_source),
                        static_cast<float>(w_source - w)};
    const double tolerance = 2e-6 * static_cast<double>(dim);
    for (std::size_t v = 0; v < count; ++v) {
      SCOPED_TRACE(::testing::Message() << variants[v]->instruction_set << " dim " << dim);
      const MergeError sums = variants[v]->merge_error(row, dim);
      EXPECT_NEAR(sums.squared, squared, tolerance);
      EXPECT_NEAR(sums.absolute, absolute, tolerance);
      EXPECT_NEAR(sums.reference, reference, tolerance);
      EXPECT_NEAR(sums.dot, dot, tolerance);
    }
  }
}

/// Vectors whose squares leave the range of float32 still have a direction.
TEST(Cosine, SurvivesHugeAndTinyVectors) {
  for (const float scale : {1e-30F, 1e-18F, 1.0F, 1e18F, 1e30F}) {
    const std::vector<float> a{3.0F * scale, 4.0F * scale};
    const std::vector<float> b{4.0F * scale, 3.0F * scale};
    const auto view = [](const std::vector<float>& values) {
      return ArrayView{reinterpret_cast<const std::byte*>(values.data()), values.size(),
                       ViewType::f32};
    };
    const std::vector<std::uint8_t> valid{1};
    std::vector<CosineSum> sums;
    sum_cosines(view(a), view(b), 1, valid, valid, sums);
    EXPECT_EQ(sums[0].terms, 1) << scale;
    EXPECT_NEAR(sums[0].sum, 0.96, 1e-6) << scale;
    std::vector<float> matrix;
    cross_cosines(view(a), view(b), 1, valid, valid, matrix);
    EXPECT_NEAR(matrix[0], 0.96, 1e-6) << scale;
  }
}

TEST(Cosine, CountsWhatHasNoDirection) {
  const std::vector<float> a{1.0F, 0.0F, 0.0F, 0.0F, 1.0F, NAN, 1.0F, INFINITY, NAN, 1.0F};
  const std::vector<float> b(10, 1.0F);
  const auto view = [](const std::vector<float>& values) {
    return ArrayView{reinterpret_cast<const std::byte*>(values.data()), values.size(),
                     ViewType::f32};
  };
  std::vector<CosineSum> sums;
  sum_cosines(view(a), view(b), 1, std::vector<std::uint8_t>{1, 1, 1, 1, 0},
              std::vector<std::uint8_t>(5, 1), sums);
  EXPECT_EQ(sums[0].terms, 1);
  EXPECT_EQ(sums[0].zero, 1);
  EXPECT_EQ(sums[0].non_finite, 2);
  EXPECT_THROW(sum_cosines(view(a), view(b), 3, std::vector<std::uint8_t>(5, 1),
                           std::vector<std::uint8_t>(5, 1), sums),
               std::logic_error);
}

}  // namespace
}  // namespace blockscope
