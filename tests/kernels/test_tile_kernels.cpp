// The inner loops of every instruction set this machine has: exact data movement, the exponential,
// and guard words around every buffer they write.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/tile_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/seed.h"

namespace blockscope::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class TileKernelsOn : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    int64_t count = 0;
    const TileKernels* const* variants = available_tile_kernels(&count);
    if (GetParam() >= count) GTEST_SKIP() << "this machine has " << count << " instruction sets";
    kernels_ = variants[GetParam()];
  }
  const TileKernels* kernels_ = nullptr;
};

// A buffer whose neighbours on both sides must keep their value.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t floats)
      : floats_(static_cast<size_t>(floats)), memory_(floats_ + 2 * kGuard, kMagic) {
    std::fill_n(data(), floats_, 0.0f);
  }
  float* data() { return memory_.data() + kGuard; }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory_[i] != kMagic || memory_[kGuard + floats_ + i] != kMagic) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr float kMagic = -12345.75f;
  size_t floats_;
  std::vector<float> memory_;
};

std::vector<float> random_floats(int64_t count, SeededRandom& random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

TEST_P(TileKernelsOn, OneTileEqualsPlainLoopsAndWritesNothingOutside) {
  uint64_t seed = 1;
  for (const int64_t dim : {1, 5, 16, 33, 48, 128}) {
    for (const int64_t num_keys : {1, 3, 8, 16, 17, 33, 63, 64}) {
      for (const int64_t rows : {1, 2, 3, 7, 12, 19, 24}) {
        SCOPED_TRACE(::testing::Message() << kernels_->name << " dim " << dim << " keys "
                                          << num_keys << " rows " << rows << " seed " << seed);
        SeededRandom random(seed++);
        // Exactly sized, so that a sanitizer build sees any read behind the end.
        const std::vector<float> q = random_floats(rows * dim, random);
        const std::vector<float> k = random_floats(num_keys * dim, random);
        const std::vector<float> v = random_floats(num_keys * dim, random);
        GuardedBuffer queries(packed_query_floats(rows, dim));
        GuardedBuffer keys(packed_tile_floats(dim));
        GuardedBuffer values(packed_tile_floats(dim));
        GuardedBuffer scores(rows * kTileKeys);
        GuardedBuffer output(rows * padded(dim));
        const int64_t stride = dim * 4;
        for (int64_t r = 0; r < rows; ++r) {
          kernels_->pack_query(Element::kFloat32, q.data() + r * dim, dim, r, queries.data());
        }
        kernels_->pack_keys(Element::kFloat32, k.data(), stride, num_keys, dim, keys.data());
        kernels_->pack_values(Element::kFloat32, v.data(), stride, num_keys, dim, values.data());
        kernels_->scores(Element::kFloat32, queries.data(), keys.data(), rows, num_keys, dim,
                         scores.data());
        const std::vector<float> alpha(static_cast<size_t>(rows), 0.5f);
        std::fill_n(output.data(), rows * padded(dim), 2.0f);
        std::vector<double> expected;
        std::vector<double> got;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t j = 0; j < num_keys; ++j) {
            double dot = 0.0;
            for (int64_t d = 0; d < dim; ++d) {
              dot += double{q[static_cast<size_t>(r * dim + d)]} *
                     double{k[static_cast<size_t>(j * dim + d)]};
            }
            expected.push_back(dot);
            got.push_back(scores.data()[r * kTileKeys + j]);
          }
        }
        ASSERT_TRUE(close_to(got, expected, {1e-10, 1e-4}));
        kernels_->accumulate(scores.data(), values.data(), alpha.data(), rows, num_keys, dim,
                             output.data());
        expected.clear();
        got.clear();
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t d = 0; d < dim; ++d) {
            double sum = 1.0;  // alpha * 2
            for (int64_t j = 0; j < num_keys; ++j) {
              sum += double{scores.data()[r * kTileKeys + j]} *
                     double{v[static_cast<size_t>(j * dim + d)]};
            }
            expected.push_back(sum);
            got.push_back(output.data()[r * padded(dim) + d]);
          }
        }
        ASSERT_TRUE(close_to(got, expected, {1e-10, 1e-2}));
        ASSERT_TRUE(queries.intact() && keys.intact() && values.intact() && scores.intact() &&
                    output.intact());
      }
    }
  }
}

// Every 16-bit pattern goes through pack_values, which widens to float32.
TEST_P(TileKernelsOn, EveryHalfAndBFloat16PatternIsWidenedExactly) {
  for (const Element element : {Element::kFloat16, Element::kBFloat16}) {
    for (uint32_t pattern = 0; pattern < 0x10000; pattern += 16) {
      uint16_t raw[16];
      for (uint32_t i = 0; i < 16; ++i) raw[i] = static_cast<uint16_t>(pattern + i);
      GuardedBuffer packed(packed_tile_floats(16));
      kernels_->pack_values(element, raw, 32, 1, 16, packed.data());
      GuardedBuffer output(16);
      const float one = 1.0f;
      std::vector<float> weights(kTileKeys, 0.0f);
      weights[0] = 1.0f;
      kernels_->accumulate(weights.data(), packed.data(), &one, 1, 1, 16, output.data());
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t bits = pattern + i;
        double expected = 0.0;
        if (element == Element::kBFloat16) {
          const uint32_t wide = bits << 16;
          float value = 0.0f;
          std::memcpy(&value, &wide, 4);
          expected = value;
        } else {
          const int exponent = static_cast<int>(bits >> 10 & 31u);
          const double mantissa = bits & 1023u;
          expected = exponent == 0    ? std::ldexp(mantissa, -24)
                     : exponent == 31 ? (mantissa == 0.0 ? double{kInfinity} : double{NAN})
                                      : std::ldexp(1024.0 + mantissa, exponent - 25);
          if (bits & 0x8000u) expected = -expected;
        }
        const double got = output.data()[i];
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(got)) << bits;
        } else {
          ASSERT_EQ(got, expected) << bits;
        }
      }
    }
  }
}

TEST_P(TileKernelsOn, TheExponentialIsWithinTwoUlp) {
  const float lse = 0.0f;
  double worst = 0.0;
  for (double x = -87.3; x < 88.0; x += 0.00511) {
    std::vector<float> scores(kTileKeys, 0.0f);
    scores[0] = static_cast<float>(x);
    std::vector<float> sums(kTileKeys, 0.0f);
    kernels_->probabilities(scores.data(), &lse, 1, 1, 1.0f, sums.data());
    const double expected = std::exp(double{scores[0]});
    const float rounded = static_cast<float>(expected);
    const double ulp = double{std::nextafter(rounded, kInfinity)} - double{rounded};
    worst = std::max(worst, std::abs(double{sums[0]} - expected) / ulp);
  }
  EXPECT_LT(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(TileKernelsOn, TheExponentialOfTheEdgesIsExact) {
  const float lse = 0.0f;
  std::vector<float> scores(kTileKeys, 0.0f);
  const std::vector<float> x = {0.0f, -0.0f, -kInfinity, -88.0f, -1e30f, NAN};
  std::copy(x.begin(), x.end(), scores.begin());
  std::vector<float> sums(kTileKeys, 0.0f);
  kernels_->probabilities(scores.data(), &lse, 1, 6, 1.0f, sums.data());
  EXPECT_EQ(sums[0], 1.0f);
  EXPECT_EQ(sums[1], 1.0f);
  EXPECT_EQ(sums[2], 0.0f);
  EXPECT_EQ(sums[3], 0.0f);
  EXPECT_EQ(sums[4], 0.0f);
  EXPECT_TRUE(std::isnan(sums[5]));
}

TEST_P(TileKernelsOn, SoftmaxHidesWhatARowMayNotSee) {
  GuardedBuffer scores(4 * kTileKeys);
  std::fill_n(scores.data(), 4 * kTileKeys, 1.0f);
  GuardedBuffer row_max(4);
  GuardedBuffer row_sum(4 * kMaxLanes);
  GuardedBuffer alpha(4);
  std::fill_n(row_max.data(), 4, -kInfinity);
  const int64_t visible[4] = {-5, 0, 13, 100};
  kernels_->softmax(scores.data(), 4, 40, 2.0f, visible, row_max.data(), row_sum.data(),
                    alpha.data());
  const double expected[4] = {0.0, 0.0, 13.0, 40.0};
  for (int64_t r = 0; r < 4; ++r) {
    double sum = 0.0;
    for (int64_t lane = 0; lane < kMaxLanes; ++lane) sum += row_sum.data()[r * kMaxLanes + lane];
    EXPECT_EQ(sum, expected[r]) << r;
    EXPECT_EQ(row_max.data()[r], expected[r] > 0.0 ? 2.0f : -kInfinity) << r;
  }
  EXPECT_TRUE(scores.intact() && row_max.intact() && row_sum.intact() && alpha.intact());
}

INSTANTIATE_TEST_SUITE_P(InstructionSet, TileKernelsOn, ::testing::Range<int64_t>(0, 4));

}  // namespace
}  // namespace blockscope::testing
