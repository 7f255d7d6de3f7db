// WeightSpread against weights in float64: on every instruction set of this machine, from the torch
// operators that replace the kernels on a device, and from a device's kernels in the emulator.
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

// The parentheses: a WeightSpread would bring in blockscope's own function.
SplitAttention split(const AttentionCase& c, WeightSpread* spread) {
  return (split_attention)(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, nullptr,
                           spread);
}

template <class Attend>
void expect_spread_of_case(const CaseShape& shape, uint64_t seed, const Attend& attend) {
  SCOPED_TRACE(::testing::Message() << shape << " seed " << seed);
  const AttentionCase c = make_case(shape, seed);
  WeightSpread spread = question(shape);
  const SplitAttention with = attend(c, &spread);
  const SplitAttention without = attend(c, nullptr);
  EXPECT_TRUE(at::equal(with.out, without.out));
  EXPECT_TRUE(at::equal(with.lse_external, without.lse_external));
  EXPECT_TRUE(at::equal(with.internal, without.internal));
  // vdpbf16ps and AMX take subnormal products as 0; half and float are exact products.
  expect_spread(c, spread);
}

#if !defined(BLOCKSCOPE_EMULATED_OPERATORS)
class WeightSpreadOn : public ::testing::TestWithParam<int64_t> {};

TEST_P(WeightSpreadOn, EveryCaseEqualsFloat64AndLeavesTheOutputsAsTheyAre) {
  int64_t count = 0;
  const TileKernels& kernels = *available_tile_kernels(&count)[GetParam()];
  SCOPED_TRACE(kernels.name);
  uint64_t seed = 1;
  for (const CaseShape& shape : case_table()) {
    expect_spread_of_case(shape, seed++, [&](const AttentionCase& c, WeightSpread* spread) {
      const AttentionSizes sizes = check_attention("test", c.q, "k", c.k_ext, "v", &c.v_ext);
      return split_attention_cpu(kernels, sizes, c.q, c.k_ext, c.v_ext, shape.ext_len, c.k_in,
                                 c.v_in, {}, c.scale, nullptr, spread);
    });
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
#else
const auto kEveryValue = {&WeightSpread::entropy, &WeightSpread::largest, &WeightSpread::range,
                          &WeightSpread::key, &WeightSpread::offset};

class WeightSpreadDevice : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void TearDown() override { emulated::set_options({}); }
};

TEST_P(WeightSpreadDevice, EveryCaseEqualsFloat64AndLeavesTheOutputsAsTheyAre) {
  std::vector<CaseShape> cases = case_table();
  // More parts than warps, and parts of several heads in a thread block; chunks and their tails.
  cases.push_back({.heads = 10, .kv_heads = 1, .queries = 20, .internal = 20, .ext_len = {70}});
  cases.push_back({.dim = 136, .queries = 33, .internal = 70, .ext_len = {130}});
  cases.push_back({.heads = 2, .dim = 16, .ext_len = {320, 0, 577}});
  for (size_t i = case_table().size(), end = cases.size(); i < end; ++i) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      cases.push_back(cases[i]);
      cases.back().dtype = dtype;
    }
  }
  uint64_t seed = 1;
  for (const CaseShape& shape : cases) {
    if (shape.dtype != GetParam()) continue;
    emulated::set_options({.seed = seed});
    expect_spread_of_case(shape, seed++, split);
    if (HasFailure()) return;
  }
}

TEST_P(WeightSpreadDevice, SchedulesAndOtherSequencesChangeNothing) {
  for (const int64_t dim : {64, 128, 256}) {
    const CaseShape shape{.heads = 6,
                          .dim = dim,
                          .queries = 20,
                          .internal = 20,
                          .ext_len = {450, 100},
                          .dtype = GetParam()};
    const AttentionCase c = make_case(shape, 11);
    emulated::set_options({});
    WeightSpread first = question(shape);
    split(c, &first);
    for (uint64_t seed = 2; seed < 4; ++seed) {
      emulated::set_options({.seed = seed});
      WeightSpread again = question(shape);
      split(c, &again);
      for (const auto values : kEveryValue) {
        EXPECT_TRUE(at::equal(first.*values, again.*values)) << "seed " << seed;
      }
    }
    AttentionCase alone = c;
    for (at::Tensor* t :
         {&alone.q, &alone.k_ext, &alone.v_ext, &alone.k_in, &alone.v_in, &alone.ext_len}) {
      *t = t->slice(0, 1, 2);
    }
    WeightSpread second;
    second.ends = {first.ends[1]};
    split(alone, &second);
    for (const auto values : kEveryValue) {
      EXPECT_TRUE(at::equal((first.*values)[1], (second.*values)[0]));
    }
    emulated::set_options({.seed = 6, .rounding = emulated::Rounding::kTruncate});
    WeightSpread truncated = question(shape);
    split(c, &truncated);
    expect_spread(c, truncated, {}, 1e-5);
  }
}

TEST_P(WeightSpreadDevice, LayoutAndASetOfAllKeysChangeNothing) {
  const CaseShape shape{.dim = 24, .ext_len = {300, 90}, .spare = 0, .dtype = GetParam()};
  const AttentionCase c = make_case(shape, 12);
  WeightSpread plain = question(shape);
  split(c, &plain);
  AttentionCase strided = c;
  for (at::Tensor* tensor : {&strided.q, &strided.k_ext, &strided.k_in}) {
    std::vector<int64_t> sizes = tensor->sizes().vec();
    sizes.back() += 3;
    *tensor = at::full(sizes, NAN, tensor->options()).narrow(3, 1, 24).copy_(*tensor);
  }
  WeightSpread same = question(shape);
  split(strided, &same);
  const at::Tensor all = at::arange(300, at::kInt).expand({2, 2, 300});
  const at::Tensor index = all.where(all.lt(c.ext_len.view({2, 1, 1})), -1).to(at::kInt);
  for (const at::Tensor& dense : {at::Tensor(), at::tensor({0, 1}, at::kInt).to(at::kBool)}) {
    WeightSpread gathered = question(shape);
    (gather_attention)(c.q, c.k_ext, c.v_ext, c.ext_len, index, c.k_in, c.v_in, c.scale, dense, {},
                       {}, &gathered);
    for (const auto values : kEveryValue) {
      EXPECT_TRUE(at::equal(plain.*values, same.*values));
      EXPECT_TRUE(at::equal(plain.*values, gathered.*values));
    }
  }
}

TEST_P(WeightSpreadDevice, ScoresOfMinusInfinityWeighNothing) {
  const CaseShape shape{.heads = 1,
                        .kv_heads = 1,
                        .dim = 1,
                        .queries = 1,
                        .internal = 1,
                        .ext_len = {70},
                        .dtype = GetParam()};
  AttentionCase c = make_case(shape, 13);
  c.q.fill_(1.0);
  c.k_ext.fill_(0.0).slice(2, 0, 66).fill_(-INFINITY);
  c.k_in.fill_(0.0);
  WeightSpread spread;
  spread.ends = {{66, 69}};
  split(c, &spread);
  EXPECT_TRUE(
      at::allclose(spread.entropy.flatten(), at::tensor({std::log(4.0f), 0.0f, std::log(5.0f)})));
  EXPECT_TRUE(at::allclose(spread.largest.flatten(), at::tensor({0.25f, 1.0f, 0.2f})));
  EXPECT_TRUE(at::allclose(spread.range.flatten(), at::tensor({0.0f, 0.6f})));
  c.k_ext.fill_(-INFINITY);
  split(c, &spread);
  EXPECT_TRUE(at::equal(spread.entropy.flatten(), at::zeros({3})));
  EXPECT_TRUE(at::equal(spread.largest.flatten(), at::tensor({0.0f, 1.0f, 1.0f})));
  EXPECT_TRUE(at::equal(spread.range.flatten(), at::zeros({2})));
}

TEST(WeightSpreadTiles, ItsKeysAreReadOnceForFourPartsAndWithoutBankConflicts) {
  for (const int64_t dim : {64, 128, 256}) {
    const CaseShape shape{.heads = 8,
                          .dim = dim,
                          .queries = 32,
                          .internal = 32,
                          .ext_len = {300, 130},
                          .dtype = at::kBFloat16};
    const AttentionCase c = make_case(shape, 14);
    WeightSpread spread = question(shape);
    emulated::counters() = {};
    split(c, nullptr);
    const int64_t attention = emulated::counters().copied_bytes;
    emulated::counters() = {};
    split(c, &spread);
    // Of two KV heads, each in two blocks of four parts: keys, and queries for each chunk.
    const int64_t keys = 2 * 2 * (300 + 130 + 2 * 32);
    const int64_t rows = 8 * 32 * (2 + 1 + 2);
    EXPECT_EQ(emulated::counters().copied_bytes - attention, (keys + rows) * dim * 2);
    EXPECT_EQ(emulated::counters().bank_conflicts, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, WeightSpreadDevice,
                         ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16));
#endif

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
  for (const bool torch : {false, true}) {
    WeightSpread spread = question(shape);
    (torch ? fallback::gather_attention : gather_attention)(
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
  const SplitAttention exact = split(c, &whole);
  const at::Tensor mask = at::tensor({1, 0, 1, 1}, at::kInt).to(at::kBool);
  for (const bool torch : {false, true}) {
    WeightSpread spread = question(shape);
    (torch ? fallback::reuse_attention : reuse_attention)(
        c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, exact.external, exact.lse_external, mask,
        c.scale, &spread, {});
    for (const at::Tensor* values : {&spread.range, &spread.key, &spread.offset}) {
      EXPECT_TRUE(at::equal(values->isnan().all(-1), mask.expand({2, 4})));
    }
    EXPECT_TRUE(at::allclose(spread.entropy.select(1, 1), whole.entropy.select(1, 1), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(spread.entropy.select(2, 1), whole.entropy.select(2, 1), 1e-5, 1e-5));
    EXPECT_TRUE(spread.largest.select(2, 2).isnan().eq(mask.expand({2, 4})).all().item<bool>());
  }
}

TEST(WeightSpread, HeadsThatReuseKnowEverythingWhenAllTheirRowsAreRefreshed) {
  const CaseShape shape{.ext_len = {130, 20}};
  const AttentionCase c = make_case(shape, 4);
  WeightSpread whole = question(shape);
  const SplitAttention exact = split(c, &whole);
  const at::Tensor mask = at::tensor({1, 0, 1, 1}, at::kInt).to(at::kBool);
  at::Tensor rows = at::ones({2, 4}, at::kBool);
  rows[1][2] = false;
  at::Tensor unknown = mask.repeat({2, 1});
  unknown[0].fill_(false);
  for (const bool torch : {false, true}) {
    WeightSpread spread = question(shape);
    (torch ? fallback::reuse_attention : reuse_attention)(
        c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, exact.external, exact.lse_external, mask,
        c.scale, &spread, rows);
    const auto expect_known = [&](const at::Tensor& got, const at::Tensor& wanted) {
      const at::Tensor expected = wanted.masked_fill(unknown.unsqueeze(-1), NAN);
      EXPECT_TRUE(at::allclose(got, expected, 1e-5, 1e-5, true)) << got << expected;
    };
    expect_known(spread.range, whole.range);
    expect_known(spread.key, whole.key);
    expect_known(spread.offset, whole.offset);
    for (const int64_t side : {0, 2}) {
      expect_known(spread.entropy.slice(2, side, side + 1), whole.entropy.slice(2, side, side + 1));
      expect_known(spread.largest.slice(2, side, side + 1), whole.largest.slice(2, side, side + 1));
    }
    EXPECT_TRUE(at::allclose(spread.entropy.select(2, 1), whole.entropy.select(2, 1), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(spread.largest.select(2, 1), whole.largest.select(2, 1), 1e-5, 1e-5));
  }
}

TEST(WeightSpread, NaNStaysInItsHead) {
  const CaseShape shape{.ext_len = {130}};
  AttentionCase c = make_case(shape, 5);
  c.q[0][1][2].fill_(std::numeric_limits<double>::quiet_NaN());
  WeightSpread spread = question(shape);
  split(c, &spread);
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
    EXPECT_THROW(split(c, &spread), c10::Error);
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
