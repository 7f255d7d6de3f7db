// If an answer's token differs from its target's, the difference is a near-tie or an error.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "probe/verify/draft_ties.h"
#include "tests/support/recompute.h"
#include "tests/support/tiny_model.h"

namespace blockscope::testing {
namespace {

constexpr int64_t kPosition = 5;
constexpr int64_t kLength = 9;

DecodeOptions token_by_token() {
  DecodeOptions options = tiny_options();
  options.mask_token_id = -1;
  options.unmasking.block_length = 1;
  options.unmasking.denoising_steps = 1;
  return options;
}

class DraftTies : public ::testing::Test {
 protected:
  DraftTies() : answer_(recompute_autoregressive(tiny_model(3), request_.prompt, kLength)) {}

  /// The target with another row of the LM head, `share` of the row of its token at kPosition;
  /// `other` gets it. -> that token. Its logit is the same share of the other's.
  LoadedModel with_share(int64_t other, double share) const {
    const BlockDiffusionModel model = tiny_model(3);
    WeightMap weights;
    for (const auto& [name, weight] : model.weights()) weights.emplace(name, weight.clone());
    at::Tensor head = weights.at("lm_head.weight");
    head[other].copy_(head[own()] * share);
    LoadedModel loaded;
    loaded.config = model.config();
    loaded.dtype = at::kFloat;
    loaded.model = std::make_shared<BlockDiffusionModel>(model.config(), std::move(weights));
    return loaded;
  }
  int64_t own() const { return answer_[kPosition]; }
  int64_t above_own() const { return own() + 1 == kTinyVocab ? own() - 1 : own() + 1; }

  TieFinding find(const LoadedModel& model, int64_t other) const {
    return find_tie(model, token_by_token(), request_, answer_, {0, kPosition, own(), other});
  }
  /// The logits there, by dense attention over the whole text.
  at::Tensor logits(const LoadedModel& model) const {
    std::vector<int64_t> tokens = request_.prompt;
    tokens.insert(tokens.end(), answer_.begin(), answer_.begin() + kPosition);
    return last_logits(*model.model, tokens, 1, 1)[0];
  }

  const DecodeRequest request_ = tiny_request(0, 11, kLength);
  const std::vector<int64_t> answer_;
};

TEST_F(DraftTies, TheSameLogitIsATie) {
  const TieFinding finding = find(with_share(above_own(), 1.0), above_own());
  EXPECT_EQ(finding.gap, 0.0);
  EXPECT_EQ(finding.gap_again, 0.0);
  EXPECT_TRUE(finding.tie());
}

TEST_F(DraftTies, ALogitThatRoundingReachesIsATie) {
  const TieFinding finding = find(with_share(above_own(), 1.0 - 1e-7), above_own());
  EXPECT_LT(std::abs(finding.gap), 1e-5);
  EXPECT_TRUE(finding.tie()) << finding.gap << ", allowed " << finding.allowed;
}

TEST_F(DraftTies, ALogitThatItDoesNotReachIsNone) {
  for (const double share : {0.999, 0.9, 0.0}) {
    SCOPED_TRACE(share);
    const LoadedModel model = with_share(above_own(), share);
    const at::Tensor expected = logits(model);
    const double gap = (expected[own()] - expected[above_own()]).item<double>();
    ASSERT_GT(gap, 1e-3);
    const TieFinding finding = find(model, above_own());
    EXPECT_NEAR(finding.gap, gap, 1e-4);
    EXPECT_NEAR(finding.gap_again, gap, 1e-4);
    EXPECT_FALSE(finding.tie());
  }
}

TEST_F(DraftTies, WhatIsAllowedFollowsTheRoundingAndTheDtype) {
  LoadedModel model = with_share(above_own(), 0.9);
  const TieFinding finding = find(model, above_own());
  const double largest = logits(model).abs().max().item<double>();
  EXPECT_LT(finding.rounding, 1e-4);
  EXPECT_NEAR(finding.allowed, std::max(2 * finding.rounding, largest * 0x1p-23), 1e-9);
  model.dtype = at::kBFloat16;  // whose last place is as wide as this
  EXPECT_NEAR(find(model, above_own()).allowed, largest * 0x1p-7, 1e-4);
}

TEST_F(DraftTies, AnInterruptedSearchFindsNoTie) {
  const LoadedModel model = with_share(above_own(), 1.0);
  const TieFinding finding = find_tie(model, token_by_token(), request_, answer_,
                                      {0, kPosition, own(), above_own()}, [] { return true; });
  EXPECT_FALSE(finding.tie());
}

}  // namespace
}  // namespace blockscope::testing
