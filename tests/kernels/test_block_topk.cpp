// block_topk and token_topk against probabilities in float64, and the order of ties.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/cpu/top_k_selector.h"
#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

at::Tensor lse_external(const AttentionCase& problem) {
  return split_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                         problem.v_in, problem.scale)
      .lse_external;
}

TopK block(const AttentionCase& problem, int64_t k) {
  return block_topk(problem.q, problem.k_ext, problem.ext_len, lse_external(problem), k,
                    problem.scale);
}

TokenTopK token(const AttentionCase& problem, int64_t k) {
  return token_topk(problem.q, problem.k_ext, problem.ext_len, lse_external(problem), k,
                    problem.scale);
}

// Queries [heads of the group, tokens] of one KV head; token -1: all tokens.
std::vector<Row> group_queries(const AttentionCase& problem, int64_t s, int64_t kv_head,
                               int64_t token) {
  std::vector<Row> queries;
  const int64_t group = problem.q.size(1) / problem.k_ext.size(1);
  for (int64_t g = 0; g < group; ++g) {
    const std::vector<Row> rows = to_rows(problem.q[s][kv_head * group + g]);
    for (size_t t = 0; t < rows.size(); ++t) {
      if (token < 0 || static_cast<size_t>(token) == t) queries.push_back(rows[t]);
    }
  }
  return queries;
}

// Near-ties may be ordered either way by rounding, so positions are judged by their probability.
void expect_set(const at::Tensor& index, const at::Tensor& probability,
                const std::vector<double>& expected) {
  const std::vector<double> positions = to_doubles(index);
  const std::vector<double> got = to_doubles(probability);
  const std::vector<int64_t> best = top_k_reference(expected, positions.size());
  std::set<double> seen;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i >= best.size()) {
      EXPECT_EQ(positions[i], -1.0);
      EXPECT_EQ(got[i], 0.0);
      continue;
    }
    ASSERT_TRUE(positions[i] >= 0.0 && positions[i] < static_cast<double>(expected.size()));
    EXPECT_TRUE(seen.insert(positions[i]).second) << "position " << positions[i] << " twice";
    const double at_position = expected[static_cast<size_t>(positions[i])];
    const double at_rank = expected[static_cast<size_t>(best[i])];
    EXPECT_NEAR(got[i], at_position, 1e-5 * at_position);
    EXPECT_NEAR(at_position, at_rank, 1e-5 * at_rank) << "rank " << i;
    EXPECT_LE(got[i], got[i > 0 ? i - 1 : 0]);
  }
}

std::vector<CaseShape> case_table() {
  std::vector<CaseShape> cases;
  for (const int64_t length : {0, 1, 9, 63, 64, 65, 1023, 1025, 2500}) {
    cases.push_back({.ext_len = {length}});
  }
  cases.push_back({.heads = 8, .kv_heads = 1, .dim = 16, .queries = 40, .ext_len = {100}});
  cases.push_back({.heads = 6, .kv_heads = 2, .ext_len = {70, 0, 5}});
  cases.push_back({.dim = 64, .ext_len = {200}, .dtype = at::kHalf});
  cases.push_back({.dim = 33, .ext_len = {200}, .dtype = at::kBFloat16});
  return cases;
}

TEST(BlockTopK, SetsAndProbabilitiesEqualTheFloat64Reference) {
  uint64_t seed = 1;
  for (const CaseShape& shape : case_table()) {
    SCOPED_TRACE(::testing::Message() << shape << " seed " << seed);
    const AttentionCase problem = make_case(shape, seed++);
    const TopK got = block(problem, 10);
    for (int64_t s = 0; s < problem.q.size(0); ++s) {
      for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const std::vector<Row> keys =
            to_rows(problem.k_ext[s][kv_head].slice(0, 0, shape.ext_len[static_cast<size_t>(s)]));
        expect_set(got.index[s][kv_head], got.probability[s][kv_head],
                   mean_probability_reference(group_queries(problem, s, kv_head, -1), keys,
                                              problem.scale));
      }
    }
  }
}

TEST(TokenTopK, SetsUnionAndProbabilitiesEqualTheFloat64Reference) {
  uint64_t seed = 1;
  for (const CaseShape& shape : case_table()) {
    SCOPED_TRACE(::testing::Message() << shape << " seed " << seed);
    const AttentionCase problem = make_case(shape, seed++);
    const TokenTopK got = token(problem, 10);
    for (int64_t s = 0; s < problem.q.size(0); ++s) {
      for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const std::vector<Row> keys =
            to_rows(problem.k_ext[s][kv_head].slice(0, 0, shape.ext_len[static_cast<size_t>(s)]));
        std::set<double> in_union;
        for (int64_t t = 0; t < shape.queries; ++t) {
          expect_set(got.index[s][kv_head][t], got.probability[s][kv_head][t],
                     mean_probability_reference(group_queries(problem, s, kv_head, t), keys,
                                                problem.scale));
          for (const double n : to_doubles(got.index[s][kv_head][t])) in_union.insert(n);
        }
        in_union.erase(-1.0);
        EXPECT_EQ(got.union_size[s][kv_head].item<int64_t>(),
                  static_cast<int64_t>(in_union.size()));
      }
    }
  }
}

TEST(TokenTopK, UnionLiesBetweenOneSetAndAllSets) {
  const AttentionCase problem = make_case({.queries = 16, .ext_len = {900}}, 20);
  const TokenTopK got = token(problem, 32);
  EXPECT_TRUE(got.union_size.ge(32).all().item<bool>());
  EXPECT_TRUE(got.union_size.le(16 * 32).all().item<bool>());
}

TEST(BlockTopK, TiesGoToTheLowerPositionAndSmallerSetsArePrefixes) {
  AttentionCase problem = make_case({.ext_len = {1500}, .spare = 0}, 21);
  // 15 copies of the same 100 keys: every probability occurs 15 times, in every tile position.
  const at::Tensor keys = problem.k_ext.slice(2, 0, 100);
  problem.k_ext = at::cat(std::vector<at::Tensor>(15, keys), 2);
  const TopK large = block(problem, 300);
  const std::vector<double> positions = to_doubles(large.index[0][0]);
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(positions[i], positions[i / 15 * 15] + 100.0 * static_cast<double>(i % 15)) << i;
    EXPECT_LT(positions[i / 15 * 15], 100.0);
  }
  for (const int64_t k : {1, 14, 16, 299}) {
    const TopK small = block(problem, k);
    EXPECT_TRUE(at::equal(small.index, large.index.slice(2, 0, k)));
    EXPECT_TRUE(at::equal(small.probability, large.probability.slice(2, 0, k)));
    EXPECT_TRUE(at::equal(token(problem, k).index, token(problem, 300).index.slice(3, 0, k)));
  }
}

TEST(BlockTopK, AllProbabilitiesSumToOneOverThePrefixAndToLessWithTheBlock) {
  const AttentionCase problem = make_case({.ext_len = {130}}, 22);
  const at::Tensor prefix = block(problem, 130).probability.sum(-1);
  EXPECT_TRUE(at::allclose(prefix, at::ones_like(prefix), 0.0, 1e-5));
  const SplitAttention split =
      split_attention(problem.q, problem.k_ext, problem.v_ext, problem.ext_len, problem.k_in,
                      problem.v_in, problem.scale);
  const at::Tensor lse = at::logaddexp(split.lse_external, split.lse_internal);
  const TopK with_block =
      block_topk(problem.q, problem.k_ext, problem.ext_len, lse, 130, problem.scale);
  const at::Tensor mass = (split.lse_external - lse).exp().view({1, 2, -1}).mean(-1);
  EXPECT_TRUE(at::allclose(with_block.probability.sum(-1), mass, 0.0, 1e-5));
}

TEST(BlockTopK, ThreadsAndOtherSequencesChangeNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const AttentionCase problem = make_case({.ext_len = {3000, 40}, .dtype = dtype}, 23);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const TopK alone = block(problem, 50);
    const TokenTopK alone_token = token(problem, 50);
    at::set_num_threads(5);
    EXPECT_TRUE(at::equal(block(problem, 50).index, alone.index));
    EXPECT_TRUE(at::equal(block(problem, 50).probability, alone.probability));
    EXPECT_TRUE(at::equal(token(problem, 50).index, alone_token.index));
    at::set_num_threads(threads);
  }
}

TEST(TopKSets, EqualsBlockAndTokenTopKBitForBit) {
  uint64_t seed = 40;
  std::vector<CaseShape> shapes = case_table();
  shapes.push_back({.heads = 6, .kv_heads = 2, .queries = 16, .ext_len = {2600, 1024, 31}});
  for (const CaseShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape << " seed " << seed);
    const AttentionCase problem = make_case(shape, seed++);
    for (const int64_t k : {1, 10, 32, 700}) {
      const at::Tensor lse = lse_external(problem);
      const auto sets = [&](bool with_tokens) {
        return topk_sets(problem.q, problem.k_ext, problem.ext_len, lse, k, problem.scale,
                         with_tokens);
      };
      const TopKSets got = sets(true);
      const TopK expected = block(problem, k);
      EXPECT_TRUE(at::equal(got.index, expected.index));
      EXPECT_TRUE(at::equal(got.probability, expected.probability));
      const TopKSets without = sets(false);
      EXPECT_FALSE(without.token_index.defined());
      EXPECT_TRUE(at::equal(without.index, expected.index));
      // The union, counted from the tokens' sets.
      for (int64_t s = 0; s < got.union_size.size(0); ++s) {
        for (int64_t kv_head = 0; kv_head < got.union_size.size(1); ++kv_head) {
          const std::vector<double> all = to_doubles(got.token_index[s][kv_head].contiguous());
          std::set<double> distinct(all.begin(), all.end());
          distinct.erase(-1.0);
          EXPECT_EQ(got.union_size[s][kv_head].item<int64_t>(),
                    static_cast<int64_t>(distinct.size()));
          EXPECT_EQ(without.union_size[s][kv_head].item<int64_t>(),
                    static_cast<int64_t>(distinct.size()));
        }
      }
    }
  }
}

#if !defined(BLOCKSCOPE_EMULATED_OPERATORS)  // a GPU keeps no weights
/// Every probability of a set by its position, [S, K, N]; 0 outside.
at::Tensor by_position(const at::Tensor& index, const at::Tensor& probability, int64_t keys) {
  std::vector<int64_t> shape = index.sizes().vec();
  shape.back() = keys + 1;  // the last one takes what is -1
  const at::Tensor place = at::where(index < 0, keys, index).to(at::kLong);
  return at::zeros(shape, at::kFloat).scatter(-1, place, probability).narrow(-1, 0, keys);
}

TEST(TopKSets, OfKeptWeightsAreThoseOfTheKeys) {
  uint64_t seed = 60;
  std::vector<CaseShape> shapes = case_table();
  shapes.push_back({.heads = 6, .kv_heads = 2, .queries = 16, .ext_len = {2600, 1024, 31}});
  shapes.push_back({.heads = 8, .kv_heads = 1, .queries = 33, .ext_len = {1100}});  // two tasks
  for (const CaseShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape << " seed " << seed);
    const AttentionCase c = make_case(shape, seed++);
    ExternalWeights kept;
    const SplitAttention split =
        split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, &kept);
    const SplitAttention plain =
        split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale);
    EXPECT_TRUE(at::equal(split.out, plain.out)) << "keeping changes nothing";
    EXPECT_TRUE(at::equal(split.lse_external, plain.lse_external));
    const at::Tensor merged = at::logaddexp(split.lse_external, split.lse_internal);
    for (const at::Tensor& lse : {split.lse_external, merged}) {
      for (const int64_t k : {1, 10, 700}) {
        const TopKSets got = topk_sets(kept, c.ext_len, lse, k, true);
        const TopKSets expected = topk_sets(c.q, c.k_ext, c.ext_len, lse, k, c.scale, true);
        // Where two probabilities are equal to rounding, either may be the last of a set.
        const int64_t keys = c.k_ext.size(2);
        const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
          return at::allclose(a, b, 2e-5, 1e-7);
        };
        EXPECT_TRUE(close(got.probability, expected.probability)) << k;
        EXPECT_TRUE(close(got.token_probability, expected.token_probability)) << k;
        const at::Tensor same = (by_position(got.index, got.probability, keys) -
                                 by_position(expected.index, expected.probability, keys))
                                    .abs()
                                    .lt(2e-5)
                                    .to(at::kFloat);
        EXPECT_GT(same.mean().item<double>(), 0.999) << k;
        EXPECT_LE((got.union_size - expected.union_size).abs().max().item<int64_t>(), 2) << k;
      }
    }
  }
}

TEST(TopKSets, RefuseWeightsOfAnotherStep) {
  const AttentionCase c = make_case({.ext_len = {130}}, 25);
  ExternalWeights kept;
  const SplitAttention split =
      split_attention(c.q, c.k_ext, c.v_ext, c.ext_len, c.k_in, c.v_in, c.scale, &kept);
  EXPECT_THROW(topk_sets(kept, c.ext_len, split.lse_external, 0, false), c10::Error);
  EXPECT_THROW(topk_sets(kept, c.ext_len, split.lse_external.slice(2, 1), 3, false), c10::Error);
  EXPECT_THROW(topk_sets(kept, c.ext_len + 1000, split.lse_external, 3, false), c10::Error);
  kept.max = kept.max.slice(2, 1);
  EXPECT_THROW(topk_sets(kept, c.ext_len, split.lse_external, 3, false), c10::Error);
}
#endif

TEST(BlockTopK, WrongArgumentsThrow) {
  const AttentionCase c = make_case({.ext_len = {30}}, 24);
  const at::Tensor lse = lse_external(c);
  EXPECT_THROW(block_topk(c.q, c.k_ext, c.ext_len, lse, 0, 1.0), c10::Error);
  EXPECT_THROW(block_topk(c.q, c.k_ext, c.ext_len, lse, -3, 1.0), c10::Error);
  EXPECT_THROW(block_topk(c.q, c.k_ext, c.ext_len + 4, lse, 3, 1.0), c10::Error);
  EXPECT_THROW(block_topk(c.q, c.k_ext, c.ext_len, lse.slice(2, 1), 3, 1.0), c10::Error);
  EXPECT_THROW(token_topk(c.q, c.k_ext, c.ext_len, lse.to(at::kDouble), 3, 1.0), c10::Error);
}

TEST(TopKSelector, KeepsTheBestOfARandomStreamWithTiesAndNaN) {
  SeededRandom random(25);
  for (const int64_t k : {1, 2, 7, 100, 500, 1000, 2000}) {
    TopKSelector selector(k);
    std::vector<double> values;
    for (int32_t n = 0; n < 5000; ++n) {
      // Neighbouring floats, so that a threshold wrong by one unit shows.
      const float value =
          n % 11 == 3 ? NAN : static_cast<float>(random.integer(0, 40)) * 0x1.0p-149f;
      selector.push_range(&value, 1, n);
      values.push_back(std::isnan(value) ? -1.0 : value);
    }
    std::vector<int32_t> index(static_cast<size_t>(k));
    std::vector<float> probability(static_cast<size_t>(k));
    selector.write(index.data(), probability.data());
    const std::vector<int64_t> expected = top_k_reference(values, static_cast<size_t>(k));
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(index[i], expected[i]);
  }
}

TEST(TopKSelector, RangesGiveWhatSingleValuesGive) {
  SeededRandom random(26);
  for (const int64_t k : {1, 2, 31, 32, 33, 300, 6000}) {
    for (const int64_t distinct : {2, 50, 1000000}) {
      for (const double zeros : {0.0, 0.95}) {
        TopKSelector single(k);
        TopKSelector ranges(k);
        std::vector<float> values(5000);
        for (size_t n = 0; n < values.size(); ++n) {
          const bool zero = random.uniform() < zeros;
          values[n] = n % 97 == 5 ? NAN
                      : zero      ? 0.0f
                                  : static_cast<float>(random.integer(0, distinct)) * 1e-6f;
          single.push_range(&values[n], 1, static_cast<int32_t>(n));
        }
        for (int64_t begin = 0, count = 1; begin < 5000; begin += count, count = count * 3 + 1) {
          count = std::min<int64_t>(count, 5000 - begin);
          ranges.push_range(values.data() + begin, count, static_cast<int32_t>(begin));
        }
        std::vector<uint64_t> bits(80, 0);
        ranges.mark(bits.data());
        std::vector<int32_t> index[2];
        std::vector<float> probability(static_cast<size_t>(k));
        for (auto& positions : index) positions.resize(static_cast<size_t>(k));
        single.write(index[0].data(), probability.data());
        ranges.write(index[1].data(), probability.data());
        EXPECT_EQ(index[0], index[1]) << "k " << k << ", " << distinct << ", " << zeros;
        std::vector<uint64_t> expected(80, 0);
        for (const int32_t n : index[0]) {
          if (n >= 0) expected[static_cast<size_t>(n) / 64] |= uint64_t{1} << (n % 64);
        }
        EXPECT_EQ(bits, expected);
      }
    }
  }
}

TEST(TopKSelector, WrongGuessesChangeNothing) {
  SeededRandom random(27);
  for (const int64_t k : {1, 32, 300}) {
    std::vector<float> values(3000);
    for (float& value : values) value = static_cast<float>(random.integer(0, 5000)) * 1e-3f;
    std::vector<int32_t> expected(static_cast<size_t>(k));
    std::vector<int32_t> index(expected.size());
    std::vector<float> probability(expected.size());
    TopKSelector plain(k);
    plain.push_range(values.data(), 3000, 0);
    plain.write(expected.data(), probability.data());
    for (const float guess : {0.0f, 1.0f, 4.0f, 4.9f, 4.99f, 5.0f, 9.0f}) {
      TopKSelector guessing(k);
      for (int32_t begin = 0; begin < 3000; begin += 500) {
        guessing.push_range(values.data() + begin, 500, begin, guess);
      }
      guessing.write(index.data(), probability.data());
      EXPECT_EQ(index, expected) << "k " << k << ", guess " << guess;
    }
  }
}

TEST(TopKSelector, ALaterValueBetterByOneUnitIsKeptAndAnEqualOneIsNot) {
  TopKSelector selector(2);
  const float better = std::nextafter(0.5f, 1.0f);
  for (int32_t n = 0; n < 1000; ++n) {
    const float value = n == 900 ? better : 0.5f;
    selector.push_range(&value, 1, n);
  }
  std::vector<int32_t> index(2);
  std::vector<float> probability(2);
  selector.write(index.data(), probability.data());
  EXPECT_EQ(index, (std::vector<int32_t>{900, 0}));
  EXPECT_EQ(probability, (std::vector<float>{better, 0.5f}));
}

}  // namespace
}  // namespace blockscope::testing
