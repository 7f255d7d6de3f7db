// The inner loops of every instruction set this machine has: exact data movement, the exponential,
// and guard words around every buffer they write.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/simd/tile_kernels.h"
#include "tests/support/at_the_edge.h"
#include "tests/support/compare.h"
#include "tests/support/seed.h"

namespace blockscope::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t num_tile_variants() {
  int64_t count = 0;
  available_tile_kernels(&count);
  return count;
}

class TileKernelsOn : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    int64_t count = 0;
    kernels_ = available_tile_kernels(&count)[GetParam()];
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

// Random numbers of the type in memory; any read after the last one ends the program.
struct Numbers {
  Numbers(Element element, int64_t count, SeededRandom& random)
      : bytes(count * element_bytes(element)), values(static_cast<size_t>(count)) {
    for (size_t i = 0; i < values.size(); ++i) {
      auto raw = std::bit_cast<uint32_t>(static_cast<float>(random.normal()));
      if (element == Element::kBFloat16) {
        raw &= 0xffff0000u;
        const auto half = static_cast<uint16_t>(raw >> 16);
        std::memcpy(bytes.data() + i * 2, &half, 2);
      } else {
        std::memcpy(bytes.data() + i * 4, &raw, 4);
      }
      values[i] = double{std::bit_cast<float>(raw)};
    }
  }
  AtTheEdge<char> bytes;
  std::vector<double> values;
};

void expect_one_tile(const TileKernels& kernels, Element element, int64_t dim, int64_t num_keys,
                     int64_t rows, uint64_t seed) {
  SeededRandom random(seed);
  const int64_t stride = dim * element_bytes(element);
  const Numbers q(element, rows * dim, random);
  const Numbers k(element, num_keys * dim, random);
  const Numbers v(element, num_keys * dim, random);
  GuardedBuffer queries(packed_query_floats(rows, dim));
  GuardedBuffer keys(packed_tile_floats(dim));
  GuardedBuffer values(packed_tile_floats(dim));
  GuardedBuffer scores(rows * kTileKeys);
  GuardedBuffer output(rows * padded(dim));
  // What an earlier tile left must not get in.
  std::fill_n(keys.data(), packed_tile_floats(dim), NAN);
  std::fill_n(values.data(), packed_tile_floats(dim), NAN);
  for (int64_t r = 0; r < rows; ++r) {
    kernels.pack_query(element, q.bytes.data() + r * stride, dim, r, queries.data());
  }
  kernels.pack_keys(element, k.bytes.data(), stride, num_keys, dim, keys.data());
  kernels.pack_values(element, v.bytes.data(), stride, num_keys, dim, values.data());
  kernels.scores(element, queries.data(), keys.data(), rows, num_keys, dim, scores.data());
  std::vector<double> expected;
  std::vector<double> got;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < num_keys; ++j) {
      double dot = 0.0;
      for (int64_t d = 0; d < dim; ++d) {
        dot +=
            q.values[static_cast<size_t>(r * dim + d)] * k.values[static_cast<size_t>(j * dim + d)];
      }
      expected.push_back(dot);
      got.push_back(scores.data()[r * kTileKeys + j]);
    }
    // Weights of missing keys may have any value.
    std::fill_n(scores.data() + r * kTileKeys + num_keys, kTileKeys - num_keys, NAN);
  }
  ASSERT_TRUE(close_to(got, expected, {1e-10, 1e-4}));
  std::vector<float> alpha(static_cast<size_t>(rows));
  for (float& a : alpha) a = static_cast<float>(random.uniform());
  std::fill_n(output.data(), rows * padded(dim), 2.0f);
  kernels.accumulate(element, scores.data(), values.data(), alpha.data(), rows, num_keys, dim,
                     output.data());
  expected.clear();
  got.clear();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < dim; ++d) {
      double sum = 2.0 * double{alpha[static_cast<size_t>(r)]};
      for (int64_t j = 0; j < num_keys; ++j) {
        sum +=
            double{scores.data()[r * kTileKeys + j]} * v.values[static_cast<size_t>(j * dim + d)];
      }
      expected.push_back(sum);
      got.push_back(output.data()[r * padded(dim) + d]);
    }
  }
  ASSERT_TRUE(close_to(got, expected, {1e-10, 1e-2}));
  ASSERT_TRUE(queries.intact() && keys.intact() && values.intact() && scores.intact() &&
              output.intact());
}

TEST_P(TileKernelsOn, OneTileEqualsPlainLoopsAndNothingOutsideIsReadOrWritten) {
  uint64_t seed = 1;
  for (const Element element : {Element::kFloat32, Element::kBFloat16}) {
    for (const int64_t dim : {1, 5, 16, 33, 48, 128}) {
      for (const int64_t num_keys : {1, 3, 8, 16, 17, 33, 63, 64}) {
        for (const int64_t rows : {1, 2, 3, 7, 12, 19, 24, 33, 60}) {
          SCOPED_TRACE(::testing::Message()
                       << kernels_->name
                       << (element == Element::kFloat32 ? " float32" : " bfloat16") << " dim "
                       << dim << " keys " << num_keys << " rows " << rows << " seed " << seed);
          expect_one_tile(*kernels_, element, dim, num_keys, rows, seed++);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// For 1 to 70 rows: each row has the same bits as among 70.
TEST_P(TileKernelsOn, ARowHasTheSameBitsWhateverIsBesideIt) {
  constexpr int64_t kRows = 70, kDim = 75, kKeys = 51;
  for (const Element element : {Element::kFloat32, Element::kBFloat16}) {
    SeededRandom random(9);
    const int64_t stride = kDim * element_bytes(element);
    const Numbers q(element, kRows * kDim, random);
    const Numbers k(element, kKeys * kDim, random);
    const Numbers v(element, kKeys * kDim, random);
    const std::vector<float> alpha(kRows, 0.5f);
    std::vector<float> packed(static_cast<size_t>(packed_tile_floats(kDim)));
    const auto last_rows = [&](int64_t rows) {
      std::vector<float> queries(static_cast<size_t>(packed_query_floats(rows, kDim)));
      std::vector<float> scores(static_cast<size_t>(rows * kTileKeys));
      std::vector<float> output(static_cast<size_t>(rows * padded(kDim)), 3.0f);
      for (int64_t r = 0; r < rows; ++r) {
        kernels_->pack_query(element, q.bytes.data() + (kRows - rows + r) * stride, kDim, r,
                             queries.data());
      }
      kernels_->pack_keys(element, k.bytes.data(), stride, kKeys, kDim, packed.data());
      kernels_->scores(element, queries.data(), packed.data(), rows, kKeys, kDim, scores.data());
      kernels_->pack_values(element, v.bytes.data(), stride, kKeys, kDim, packed.data());
      kernels_->accumulate(element, scores.data(), packed.data(), alpha.data(), rows, kKeys, kDim,
                           output.data());
      std::vector<float> result;
      for (int64_t r = 0; r < rows; ++r) {
        const float* score = scores.data() + r * kTileKeys;
        const float* out = output.data() + r * padded(kDim);
        result.insert(result.end(), score, score + kKeys);
        result.insert(result.end(), out, out + kDim);
      }
      return result;
    };
    const std::vector<float> all = last_rows(kRows);
    for (int64_t rows = 1; rows <= kRows; ++rows) {
      const std::vector<float> some = last_rows(rows);
      EXPECT_TRUE(std::equal(some.rbegin(), some.rend(), all.rbegin()))
          << kernels_->name << " " << rows << " rows";
    }
  }
}

// Every 16-bit pattern goes through pack_values and is weighed with 1.
TEST_P(TileKernelsOn, EveryHalfAndBFloat16PatternIsWidenedExactly) {
  // Products of bfloat16 take subnormals as 0, and infinity is weighed with 1 and with 0.
  const bool tiles = std::string_view(kernels_->name) == "amx_bf16";
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
      kernels_->accumulate(element, weights.data(), packed.data(), &one, 1, 1, 16, output.data());
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t bits = pattern + i;
        double expected = 0.0;
        if (element == Element::kBFloat16) {
          const uint32_t wide = bits << 16;
          float value = 0.0f;
          std::memcpy(&value, &wide, 4);
          expected = value;
          if (tiles && std::isinf(value)) expected = NAN;
          if (tiles && std::abs(value) < std::numeric_limits<float>::min()) expected = 0.0;
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
                    alpha.data(), nullptr, nullptr);
  const double expected[4] = {0.0, 0.0, 13.0, 40.0};
  for (int64_t r = 0; r < 4; ++r) {
    double sum = 0.0;
    for (int64_t lane = 0; lane < kMaxLanes; ++lane) sum += row_sum.data()[r * kMaxLanes + lane];
    EXPECT_EQ(sum, expected[r]) << r;
    EXPECT_EQ(row_max.data()[r], expected[r] > 0.0 ? 2.0f : -kInfinity) << r;
  }
  EXPECT_TRUE(scores.intact() && row_max.intact() && row_sum.intact() && alpha.intact());
}

TEST_P(TileKernelsOn, WhatIsNotBelowABoundPassesInItsOrder) {
  SeededRandom random(31);
  for (const int64_t count : {1, 15, 16, 17, 64, 100}) {
    for (const float bound : {-1.0f, 0.0f, 0.5f, 0.75f, 2.0f}) {
      SCOPED_TRACE(::testing::Message() << count << " of which not below " << bound);
      std::vector<float> p(static_cast<size_t>(count));
      for (float& x : p) x = static_cast<float>(random.integer(0, 8)) / 8.0f;
      p[static_cast<size_t>(random.integer(0, count - 1))] = NAN;
      std::vector<int32_t> ranks;
      std::vector<int32_t> places;
      for (int64_t i = 0; i < count; ++i) {
        if (p[static_cast<size_t>(i)] < bound) continue;
        ranks.push_back(rank_of(p[static_cast<size_t>(i)]));
        places.push_back(7 + static_cast<int32_t>(i));
      }
      std::vector<int32_t> got_ranks(static_cast<size_t>(count + kMaxLanes + 1), -5);
      std::vector<int32_t> got_places = got_ranks;
      const int64_t passed =
          kernels_->pass_not_below(p.data(), count, bound, 7, got_ranks.data(), got_places.data());
      ASSERT_EQ(passed, std::ssize(ranks));
      EXPECT_TRUE(std::equal(ranks.begin(), ranks.end(), got_ranks.begin()));
      EXPECT_TRUE(std::equal(places.begin(), places.end(), got_places.begin()));
      EXPECT_EQ(got_ranks.back(), -5);
      EXPECT_EQ(got_places.back(), -5);
    }
  }
}

TEST_P(TileKernelsOn, ABoundSplitsTheLargestOff) {
  SeededRandom random(32);
  for (const int64_t count : {1, 16, 33, 500}) {
    for (const int64_t distinct : {0, 3, 2000000000}) {
      for (const int64_t k : {int64_t{1}, (count + 1) / 2, count}) {
        SCOPED_TRACE(::testing::Message() << k << " of " << count << ", up to " << distinct);
        std::vector<int32_t> x(static_cast<size_t>(count));
        for (int32_t& value : x) value = static_cast<int32_t>(random.integer(0, distinct));
        const int32_t bound = kernels_->splitting_bound(x.data(), count, k);
        const auto reach = std::count_if(x.begin(), x.end(), [&](int32_t v) { return v >= bound; });
        const auto exceed = std::count_if(x.begin(), x.end(), [&](int32_t v) { return v > bound; });
        EXPECT_GE(reach, k);
        EXPECT_TRUE(reach == k || exceed < k);
        std::vector<int32_t> kept = x;
        std::vector<int32_t> places(x.size());
        for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
        ASSERT_EQ(kernels_->keep_reaching(kept.data(), places.data(), count, bound), reach);
        for (int64_t i = 0; i < reach; ++i) {
          const auto at = static_cast<size_t>(i);
          EXPECT_EQ(kept[at], x[static_cast<size_t>(places[at])]);
          EXPECT_GE(kept[at], bound);
          if (i > 0) {
            EXPECT_GT(places[at], places[at - 1]);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSet, TileKernelsOn,
                         ::testing::Range<int64_t>(0, num_tile_variants()));

}  // namespace
}  // namespace blockscope::testing
