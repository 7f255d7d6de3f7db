// WeightSpread against weights in float64, on every instruction set of this machine, and against
// the torch operators that replace the kernels on a device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/cpu/split_attention_cpu.h"
#include "kernels/ops.h"
#include "kernels/torch/fallback_operators.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/split_cases.h"

namespace blockscope::testing {
namespace {

/// Ends around tiles, powers of two from the last key, and equal neighbours.
std::vector<int64_t> ends_of(int64_t length) {
  std::vector<int64_t> ends{0, 1, 4, 4, 63, 64, 65, 500, 512, 513};
  for (int64_t distance = 1; distance < 2048; distance *= 2) ends.push_back(length - distance);
  ends.push_back(length);
  for (int64_t& end : ends) end = std::clamp<int64_t>(end, 0, length);
  std::sort(ends.begin(), ends.end());
  return ends;
}

WeightSpread question(const CaseShape& shape) {
  WeightSpread spread;
  for (const int64_t length : shape.ext_len) spread.ends.push_back(ends_of(length));
  if (shape.queries != shape.internal && shape.internal > 0) {
    // Some of the block's rows: the last ones.
    for (int64_t t = 0; t < shape.queries; ++t) {
      spread.places.push_back(std::max<int64_t>(0, shape.internal - shape.queries + t));
    }
  }
  return spread;
}

/// The same values from float64 weights, written down as they are defined.
void expect_spread(const AttentionCase& c, const WeightSpread& got, const at::Tensor& index = {},
                   double tolerance = 5e-6) {
  const int64_t group = c.q.size(1) / c.k_ext.size(1);
  const int64_t queries = c.q.size(2);
  const int64_t inside = c.k_in.size(2);
  for (int64_t s = 0; s < c.q.size(0); ++s) {
    const int64_t length = c.ext_len[s].item<int64_t>();
    for (int64_t h = 0; h < c.q.size(1); ++h) {
      const at::Tensor keys =
          at::cat({c.k_ext[s][h / group].narrow(0, 0, length), c.k_in[s][h / group]})
              .to(at::kDouble);
      at::Tensor scores = c.q[s][h].to(at::kDouble).matmul(keys.t()) * c.scale;
      if (index.defined()) {
        at::Tensor hidden = at::ones({length + inside}, at::kBool);
        hidden.narrow(0, length, inside).fill_(false);
        const at::Tensor set = index[s][h / group];
        for (int64_t i = 0; i < set.numel(); ++i) {
          if (set[i].item<int>() >= 0) hidden[set[i].item<int>()].fill_(false);
        }
        scores = scores.masked_fill(hidden, -INFINITY);
      }
      const at::Tensor size = scores.masked_fill(scores.isinf(), 0.0).abs();
      const double largest_score =
          size.numel() == 0 ? 1.0 : std::max(1.0, size.max().item<double>());
      const double limit = tolerance * largest_score;
      const at::Tensor parts[] = {scores.narrow(1, 0, length), scores.narrow(1, length, inside),
                                  scores};
      for (int64_t side = 0; side < 3; ++side) {
        const bool none = parts[side].size(1) == 0 || parts[side].eq(-INFINITY).all().item<bool>();
        const at::Tensor p = at::softmax(parts[side], -1);
        const double entropy = none ? 0.0 : -at::xlogy(p, p).sum(-1).mean().item<double>();
        const double largest = none ? 0.0 : std::get<0>(p.max(-1)).mean().item<double>();
        EXPECT_NEAR(got.entropy[s][h][side].item<double>(), entropy, 4 * limit) << side;
        EXPECT_NEAR(got.largest[s][h][side].item<double>(), largest, limit) << side;
      }
      if (length + inside == 0) continue;
      const at::Tensor p = at::softmax(scores, -1);
      const at::Tensor mean = p.mean(0);
      int64_t begin = 0;
      int64_t r = 0;
      for (const int64_t end : got.ends[static_cast<size_t>(s)]) {
        EXPECT_NEAR(got.range[s][h][r++].item<double>(),
                    mean.narrow(0, begin, end - begin).sum().item<double>(), limit)
            << "range " << r << " ends at " << end;
        begin = end;
      }
      at::Tensor offset = at::zeros({std::max<int64_t>(0, 2 * inside - 1)}, at::kDouble);
      for (int64_t j = 0; j < inside; ++j) {
        EXPECT_NEAR(got.key[s][h][j].item<double>(), mean[length + j].item<double>(), limit);
        for (int64_t t = 0; t < queries; ++t) {
          const int64_t place = got.places.empty() ? t : got.places[static_cast<size_t>(t)];
          offset[j - place + inside - 1] += p[t][length + j] / queries;
        }
      }
      for (int64_t d = 0; d < offset.numel(); ++d) {
        EXPECT_NEAR(got.offset[s][h][d].item<double>(), offset[d].item<double>(), limit)
            << "offset " << d;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

class WeightSpreadOn : public ::testing::TestWithParam<int64_t> {};

TEST_P(WeightSpreadOn, EveryCaseEqualsFloat64AndLeavesTheOutputsAsTheyAre) {
  int64_t count = 0;
  const TileKernels& kernels = *available_tile_kernels(&count)[GetParam()];
  uint64_t seed = 1;
  for (const CaseShape& shape : case_table()) {
    SCOPED_TRACE(::testing::Message() << kernels.name << " " << shape << " seed " << seed);
    const AttentionCase c = make_case(shape, seed++);
    const AttentionSizes sizes = check_attention("test", c.q, "k", c.k_ext, "v", &c.v_ext);
    const auto attend = [&](WeightSpread* spread) {
      return split_attention_cpu(kernels, sizes, c.q, c.k_ext, c.v_ext, shape.ext_len, c.k_in,
                                 c.v_in, {}, c.scale, nullptr, spread);
    };
    WeightSpread spread = question(shape);
    const SplitAttention with = attend(&spread);
    const SplitAttention without = attend(nullptr);
    EXPECT_TRUE(at::equal(with.out, without.out));
    EXPECT_TRUE(at::equal(with.lse_external, without.lse_external));
    EXPECT_TRUE(at::equal(with.internal, without.internal));
    // vdpbf16ps and AMX take subnormal products as 0; half and float are exact products.
    expect_spread(c, spread);
    if (HasFailure()) return;
  }
}

int64_t num_kernels() {
  int64_t count = 0;
  available_tile_kernels(&count);
  return count;
}
INSTANTIATE_TEST_SUITE_P(InstructionSet, WeightSpreadOn,
                         ::testing::Range<int64_t>(0, num_kernels()));

TEST(WeightSpread, CountsOnlyTheKeysOfASet) {
  const CaseShape shape{.queries = 5, .internal = 5, .ext_len = {700, 90, 0}};
  const AttentionCase c = make_case(shape, 3);
  at::Tensor index = at::full({3, 2, 150}, -1, at::kInt);
  for (int64_t i = 0; i < 150; ++i) {
    index[0][0][i] = 4 * i + i % 3;  // scattered
    index[0][1][i] = 500 + i;        // neighbours
    if (i < 80) index[1][0][i] = i;  // a whole range
    if (i < 1) index[1][1][i] = 89;
  }
  for (const bool device : {false, true}) {
    WeightSpread spread = question(shape);
    (device ? fallback::gather_attention : gather_attention)(
        c.q, c.k_ext, c.v_ext, c.ext_len, index, c.k_in, c.v_in, c.scale, {}, {}, {}, &spread);
    expect_spread(c, spread, index);
  }
}

TEST(WeightSpread, TorchOperatorsGiveTheSame) {
  uint64_t seed = 1;
  for (const CaseShape& shape : case_table()) {
    if (shape.dtype != at::kFloat) continue;
    SCOPED_TRACE(::testing::Message() << shape);
    const AttentionCase c = make_case(shape, seed++);
    WeightSpread spread = question(shape);
    fallback::split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, nullptr,
                              &spread);
    expect_spread(c, spread, {}, 2e-5);
    if (HasFailure()) return;
  }
}

TEST(WeightSpread, HeadsThatReuseKnowOnlyTheirInternalDistribution) {
  const CaseShape shape{.ext_len = {130, 20}};
  const AttentionCase c = make_case(shape, 4);
  WeightSpread whole = question(shape);
  const SplitAttention exact =
      split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, nullptr, &whole);
  const at::Tensor mask = at::tensor({1, 0, 1, 1}, at::kInt).to(at::kBool);
  for (const bool device : {false, true}) {
    WeightSpread spread = question(shape);
    (device ? fallback::reuse_attention : reuse_attention)(
        c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, exact.external, exact.lse_external, mask,
        c.scale, &spread);
    for (const at::Tensor* values : {&spread.range, &spread.key, &spread.offset}) {
      EXPECT_TRUE(at::equal(values->isnan().all(-1), mask.expand({2, 4})));
    }
    EXPECT_TRUE(at::allclose(spread.entropy.select(1, 1), whole.entropy.select(1, 1), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(spread.entropy.select(2, 1), whole.entropy.select(2, 1), 1e-5, 1e-5));
    EXPECT_TRUE(spread.largest.select(2, 2).isnan().eq(mask.expand({2, 4})).all().item<bool>());
  }
}

TEST(WeightSpread, NaNStaysInItsHead) {
  const CaseShape shape{.ext_len = {130}};
  AttentionCase c = make_case(shape, 5);
  c.q[0][1][2].fill_(std::numeric_limits<double>::quiet_NaN());
  WeightSpread spread = question(shape);
  split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, nullptr, &spread);
  EXPECT_TRUE(spread.entropy[0][1].isnan().all().item<bool>());
  EXPECT_FALSE(spread.entropy[0][0].isnan().any().item<bool>());
  EXPECT_FALSE(spread.range[0][2].isnan().any().item<bool>());
}

TEST(WeightSpread, WrongQuestionsAreRefused) {
  const AttentionCase c = make_case({.ext_len = {20}}, 6);
  const auto refused = [&](std::vector<std::vector<int64_t>> ends, std::vector<int64_t> places) {
    WeightSpread spread;
    spread.ends = std::move(ends);
    spread.places = std::move(places);
    EXPECT_THROW(split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, nullptr,
                                 &spread),
                 c10::Error);
  };
  refused({}, {});
  refused({{21}}, {});
  refused({{5, 4}}, {});
  refused({{-1}}, {});
  refused({{5}}, {0, 1});
  refused({{5}}, {0, 1, 2, 4});
}

}  // namespace
}  // namespace blockscope::testing
