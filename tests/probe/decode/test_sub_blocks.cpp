// The rules of Fast-dLLM v2's sub-blocks as pure functions, and what a run with them shows. The
// whole decoding is compared with an oracle in tests/probe/parity/check_sub_blocks.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "decode_record/base/error.h"
#include "probe/decode/gen_length.h"
#include "probe/decode/sub_blocks.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;

std::vector<bool> mask(const std::string& text) {  // "x" is a mask
  std::vector<bool> masked;
  for (const char c : text) masked.push_back(c == 'x');
  return masked;
}

TEST(SubBlocks, TokensAreChosenInTheFirstOneWithAMask) {
  EXPECT_EQ(open_positions(mask("..xx..xx"), 4), mask("..xx...."));
  EXPECT_EQ(open_positions(mask("....x.xx"), 4), mask("....x.xx"));
  EXPECT_EQ(open_positions(mask(".xxxxxxx"), 2), mask(".x......"));
  EXPECT_EQ(open_positions(mask("........"), 4), mask("........"));
  EXPECT_EQ(open_positions(mask("..xx..xx"), 8), mask("..xx..xx"));
}

TEST(SubBlocks, OnlyAKnownFirstTokenAndCachedKeysSpareTheOtherRows) {
  const auto rows = [](const std::string& text, bool cached) {
    const RowRange range = rows_to_compute(mask(text), 4, cached);
    return std::pair(range.first, range.count);
  };
  EXPECT_EQ(rows(".xxxxxxx", true), std::pair(int64_t{0}, int64_t{4}));
  EXPECT_EQ(rows("......xx", true), std::pair(int64_t{4}, int64_t{4}));
  EXPECT_EQ(rows("....x.xx", true), std::pair(int64_t{0}, int64_t{8}));  // its first is a mask
  EXPECT_EQ(rows(".xxxxxxx", false), std::pair(int64_t{0}, int64_t{8}));
}

TEST(SubBlocks, ARowPredictsThePositionBehindIt) {
  EXPECT_THAT(predicting_rows({4, 4}), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(predicted_positions(mask(".....xxx"), {4, 4}),
              ElementsAre(false, false, false, false, false, true, true, true));
  // The model predicted [MASK] as the block's first token: its own row is used instead.
  EXPECT_THAT(predicted_positions(mask("x..x"), {0, 4}), ElementsAre(true, true, true, true));
}

TEST(SubBlocks, AStopTokenCountsOnceNoMaskStandsBeforeIt) {
  constexpr int64_t kMask = 39;
  EXPECT_TRUE(stop_reached({7, 1, 2, 7, kMask}, 1, {7}, kMask));
  EXPECT_FALSE(stop_reached({7, 1, kMask, 7}, 1, {7}, kMask));
  EXPECT_FALSE(stop_reached({7, 1, 2}, 1, {7}, kMask));  // the prompt's does not count
  EXPECT_FALSE(stop_reached({1, 2, 3}, 1, {}, kMask));
}

class SubBlockRun : public ::testing::TestWithParam<bool> {
 protected:
  SubBlockRun() {
    config_ = testing::tiny_config();
    config_.model_type = "Fast_dLLM_Qwen";
    config_.qk_norm = false;
    config_.attention_bias = true;
    config_.logit_shift = 1;
    options_ = testing::tiny_options();
    options_.unmasking.block_length = 8;
    options_.unmasking.denoising_steps = 8;
    options_.sub_block_length = 4;
    if (GetParam()) options_.cache.cache = "block";
  }

  ModelConfig config_;
  DecodeOptions options_;
};

TEST_P(SubBlockRun, GeneratesWholeBlocksAndTheTokenBehindThem) {
  const BlockDiffusionModel model = testing::tiny_model(3, config_);
  const std::vector<DecodeRequest> requests{testing::tiny_request(0, 11, 16),
                                            testing::tiny_request(1, 8, 23),
                                            testing::tiny_request(2, 3, 8)};
  testing::PassLog log;
  const auto outcomes = testing::decode_exact(model, options_, requests, &log);
  // The block that the prompt ends in counts: 11 -> blocks 1 and 2, up to 24, and one more.
  EXPECT_EQ(outcomes[0].generated.size(), 24U + 1 - 11);
  EXPECT_EQ(outcomes[1].generated.size(), 24U + 1 - 8);
  EXPECT_EQ(outcomes[2].generated.size(), 8U + 1 - 3);
  for (const DecodeOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.reason, FinishReason::length);
    EXPECT_THAT(outcome.generated, ::testing::Each(::testing::Ne(testing::kTinyMask)));
  }
}

TEST_P(SubBlockRun, AReplayTakesEveryTokenOfTheRunItIsOf) {
  const BlockDiffusionModel model = testing::tiny_model(4, config_);
  DecodeRequest request = testing::tiny_request(0, 16, 24);
  testing::PassLog log;
  const auto run = testing::decode_exact(model, options_, {request}, &log);
  request.replayed = true;
  request.replay = log.steps_of(0, 8);
  const auto again = testing::decode_exact(testing::tiny_model(5, config_), options_, {request});
  EXPECT_EQ(again[0].generated, run[0].generated);
  EXPECT_EQ(again[0].reason, FinishReason::replayed);
}

INSTANTIATE_TEST_SUITE_P(BlockCache, SubBlockRun, ::testing::Bool());

TEST(SubBlocks, OptionsThatDoNotFitAreRefused) {
  ModelConfig config = testing::tiny_config();
  DecodeOptions options = testing::tiny_options();
  options.cache.cache = "block";
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options.sub_block_length = 3;
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options.sub_block_length = 2;
  EXPECT_NO_THROW(check_decode_options(options, config));
  EXPECT_THROW(check_request(testing::tiny_request(0, 5, 3), options, config), PromptError);
  EXPECT_NO_THROW(check_request(testing::tiny_request(0, 5, 4), options, config));
  // The same number is the command line's fault where --gen-length says it.
  EXPECT_THROW(check_gen_length(3, options), UsageError);
  EXPECT_NO_THROW(check_gen_length(4, options));
  EXPECT_NO_THROW(check_gen_length(7, options)) << "no multiple of 4";
  options.bidirectional = true;
  EXPECT_THROW(check_gen_length(6, options), UsageError);
  EXPECT_NO_THROW(check_gen_length(8, options));
}

}  // namespace
}  // namespace blockscope
