// Quest's page bounds and scores against the published rule, key by key and query by query.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

/// Quest, algorithm 1: the bound of one query on one page, with q multiplied channel by channel.
double bound_reference(const Row& q, const std::vector<Row>& keys) {
  double total = 0.0;
  for (size_t d = 0; d < q.size(); ++d) {
    double most = keys[0][d];
    double least = keys[0][d];
    for (const Row& key : keys) {
      most = std::max(most, key[d]);
      least = std::min(least, key[d]);
    }
    total += std::max(q[d] * most, q[d] * least);
  }
  return total;
}

TEST(PageScores, EqualThePublishedRulePerBlockAndPerToken) {
  uint64_t seed = 1;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t page : {1, 2, 16, 50, 400}) {
      const AttentionCase c = make_case({.heads = 6,
                                         .kv_heads = 2,
                                         .dim = page == 16 ? 40 : 48,
                                         .queries = 3,
                                         .ext_len = {131, 0, 48},
                                         .spare = 5,
                                         .dtype = dtype},
                                        seed++);
      SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << " page " << page);
      const PageBounds bounds = page_bounds(c.k_ext, c.ext_len, page);
      const at::Tensor block = page_scores(c.q, bounds, c.ext_len, page);
      const at::Tensor token = token_page_scores(c.q, bounds, c.ext_len, page);
      const int64_t pages = (c.k_ext.size(2) + page - 1) / page;
      ASSERT_EQ(block.sizes(), (std::vector<int64_t>{3, 2, pages}));
      ASSERT_EQ(token.sizes(), (std::vector<int64_t>{3, 2, 3, pages}));
      for (int64_t s = 0; s < 3; ++s) {
        const int64_t length = c.ext_len[s].item<int64_t>();
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t p = 0; p < pages; ++p) {
            const int64_t begin = p * page;
            if (begin >= length) {
              EXPECT_EQ(block[s][h][p].item<double>(), -std::numeric_limits<double>::infinity());
              continue;
            }
            const auto keys =
                to_rows(c.k_ext[s][h].slice(0, begin, std::min(begin + page, length)));
            double all = 0.0;
            for (int64_t t = 0; t < 3; ++t) {
              double mean = 0.0;
              for (int64_t g = 0; g < 3; ++g) {
                mean += bound_reference(to_doubles(c.q[s][h * 3 + g][t]), keys) / 3.0;
              }
              EXPECT_NEAR(token[s][h][t][p].item<double>(), mean, 1e-4);
              all += mean / 3.0;
            }
            EXPECT_NEAR(block[s][h][p].item<double>(), all, 1e-4);
          }
        }
      }
    }
  }
}

TEST(PageScores, NeverLessThanAScoreInThePage) {
  const AttentionCase c = make_case({.heads = 2, .kv_heads = 2, .queries = 1, .ext_len = {90}}, 20);
  const at::Tensor scores = page_scores(c.q, page_bounds(c.k_ext, c.ext_len, 16), c.ext_len, 16);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t n = 0; n < 90; ++n) {
      const double score = c.q[0][h][0].dot(c.k_ext[0][h][n]).item<double>();
      EXPECT_LE(score, scores[0][h][n / 16].item<double>() + 1e-4);
    }
  }
}

TEST(PageBounds, PagesOfAGrowingPrefixCanBeMadeFromTheLastShortOneOn) {
  const AttentionCase c = make_case({.ext_len = {100}, .spare = 0}, 21);
  const PageBounds all = page_bounds(c.k_ext, c.ext_len, 16);
  const PageBounds late = page_bounds(c.k_ext.slice(2, 80), at::full({1}, 20, at::kLong), 16);
  EXPECT_TRUE(at::equal(all.max.slice(2, 5), late.max));
  EXPECT_TRUE(at::equal(all.min.slice(2, 5), late.min));
}

TEST(PageBounds, NaNReachesTheScoreOfItsPageOnly) {
  const AttentionCase c = make_case({.heads = 2, .kv_heads = 2, .ext_len = {64}}, 22);
  c.k_ext[0][0][20][3] = NAN;
  const PageBounds bounds = page_bounds(c.k_ext, c.ext_len, 16);
  for (const at::Tensor& bound : {bounds.max, bounds.min}) {
    EXPECT_EQ(bound.isnan().sum().item<int64_t>(), 1);
    EXPECT_TRUE(std::isnan(bound[0][0][1][3].item<float>()));
  }
  const at::Tensor scores = page_scores(c.q, bounds, c.ext_len, 16);
  EXPECT_EQ(scores.isnan().sum().item<int64_t>(), 1);
  EXPECT_TRUE(scores[0][0][1].isnan().item<bool>());
}

TEST(PageScores, WrongArgumentsThrow) {
  const AttentionCase c = make_case({.ext_len = {30}}, 23);
  const PageBounds bounds = page_bounds(c.k_ext, c.ext_len, 8);
  EXPECT_THROW(page_bounds(c.k_ext, c.ext_len, 0), c10::Error);
  EXPECT_THROW(page_bounds(c.k_ext, c.ext_len + 9, 8), c10::Error);
  EXPECT_THROW(page_scores(c.q, bounds, c.ext_len, 4), c10::Error);
  EXPECT_THROW(page_scores(c.q, bounds, c.ext_len, -1), c10::Error);
  EXPECT_THROW(page_scores(c.q.to(at::kHalf), bounds, c.ext_len, 8), c10::Error);
  EXPECT_THROW(page_scores(c.q, {bounds.max, bounds.min.narrow(2, 0, 1)}, c.ext_len, 8),
               c10::Error);
}

}  // namespace
}  // namespace blockscope::testing
