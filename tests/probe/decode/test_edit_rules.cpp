// Strategies that edit decided tokens: which positions a step fills, replaces, inserts and deletes,
// and when the block ends. Whole decodes: tests/probe/parity/check_joint_threshold.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMask = 90;
constexpr int64_t kDelete = 91;
constexpr int64_t kSplit = 92;
constexpr int64_t kSecond = 7;  // what a position takes apart from its best token

/// A block whose steps are decided by hand.
class EditedBlock {
 public:
  EditedBlock(const std::string& strategy, std::vector<int64_t> tokens, int64_t steps,
              int64_t prompt = 0)
      : options_(read_strategy(strategy)), tokens_(std::move(tokens)), prompt_(prompt) {
    options_.block_length = std::ssize(tokens_);
    options_.denoising_steps = steps;
  }

  /// One step with these predictions. Writes them as the decoder does.
  EditChoice step(std::vector<int64_t> token, std::vector<float> confidence) {
    prediction_ = {};
    prediction_.token = std::move(token);
    prediction_.confidence = std::move(confidence);
    std::vector<bool> masked;
    std::vector<bool> generated;
    for (size_t p = 0; p < tokens_.size(); ++p) {
      masked.push_back(tokens_[p] == kMask);
      generated.push_back(static_cast<int64_t>(p) >= prompt_);
    }
    EditStep step{options_,
                  prediction_,
                  tokens_,
                  masked,
                  generated,
                  {kMask, kDelete, kSplit},
                  memory_,
                  [&](size_t p, const std::vector<int64_t>& without) {
                    EXPECT_FALSE(without.empty());
                    prediction_.token[p] = kSecond;
                    prediction_.confidence[p] = 0.01F;
                  }};
    EditChoice choice = strategy_entry(options_).edit(step);
    for (const auto* list : {&choice.selected, &choice.edited}) {
      for (const int64_t p : *list) {
        tokens_[static_cast<size_t>(p)] = prediction_.token[static_cast<size_t>(p)];
      }
    }
    move_tokens(tokens_, choice.inserted, choice.deleted, kMask);
    return choice;
  }

  const std::vector<int64_t>& tokens() const { return tokens_; }
  bool ended() const { return memory_.ended; }

 private:
  UnmaskingOptions options_;
  std::vector<int64_t> tokens_;
  int64_t prompt_;
  BlockPrediction prediction_;
  EditMemory memory_;
};

TEST(JointThreshold, FillsMasksAndReplacesTokensAtOneStep) {
  EditedBlock block("joint_threshold,threshold=0.7,editing_threshold=0.5", {1, kMask, kMask, kMask},
                    4);
  const EditChoice choice = block.step({5, 6, 8, 9}, {.6F, .71F, .7F, .2F});
  EXPECT_THAT(choice.selected, ElementsAre(1));  // 0.7 is not above the threshold
  EXPECT_THAT(choice.edited, ElementsAre(0));
  EXPECT_THAT(block.tokens(), ElementsAre(5, 6, kMask, kMask));
  EXPECT_FALSE(block.ended());
}

TEST(JointThreshold, TakesAtLeastTheQuotaOfTheStepsThatBeganWithMasks) {
  EditedBlock block("joint_threshold,threshold=0.9", {kMask, kMask, kMask, kMask}, 2);
  EXPECT_THAT(block.step({1, 2, 3, 4}, {.1F, .4F, .3F, .2F}).selected, ElementsAre(1, 2));
  EXPECT_FALSE(block.ended());
  EXPECT_THAT(block.step({1, 2, 3, 4}, {.1F, .9F, .9F, .2F}).selected, ElementsAre(0, 3));
  EXPECT_TRUE(block.ended());  // the last scheduled step: no editing after it, as in diffusers
}

TEST(JointThreshold, NeverEditsThePrompt) {
  EditedBlock block("joint_threshold", {1, 2, 3, kMask}, 4, /*prompt=*/2);
  const EditChoice choice = block.step({9, 9, 9, 9}, {1.F, 1.F, 1.F, 1.F});
  EXPECT_THAT(choice.edited, ElementsAre(2));
  EXPECT_THAT(block.tokens(), ElementsAre(1, 2, 9, 9));
}

TEST(JointThreshold, KeepsATokenThatIsPredictedAgainOrDoubtfully) {
  EditedBlock block("joint_threshold,editing_threshold=0.5", {1, 2, kMask, kMask}, 4);
  EXPECT_THAT(block.step({1, 9, 3, 4}, {1.F, .5F, .9F, .1F}).edited, IsEmpty());
}

TEST(JointThreshold, EditsAfterTheLastMaskUntilNothingChanges) {
  EditedBlock block("joint_threshold", {kMask, kMask}, 2);
  block.step({1, 2}, {.9F, .9F});
  EXPECT_FALSE(block.ended());
  EXPECT_THAT(block.step({1, 3}, {.9F, .9F}).edited, ElementsAre(1));
  EXPECT_FALSE(block.ended());
  EXPECT_THAT(block.step({1, 3}, {.9F, .9F}).edited, IsEmpty());
  EXPECT_TRUE(block.ended());
}

TEST(JointThreshold, TakesOnePostStepMoreThanTheLimit) {
  EditedBlock block("joint_threshold,max_post_steps=2", {kMask, kMask}, 2);
  block.step({1, 2}, {.9F, .9F});
  for (int64_t post = 1; post <= 3; ++post) {
    EXPECT_FALSE(block.ended()) << post;
    block.step({post, 10 + post}, {.9F, .9F});
  }
  EXPECT_TRUE(block.ended());  // diffusers compares the count with `>`
}

TEST(JointThreshold, WithoutEditsEndsWithTheLastMask) {
  EditedBlock block("joint_threshold,editing_threshold=0", {kMask, 5, kMask}, 3);
  EXPECT_THAT(block.step({1, 9, 2}, {.9F, 1.F, .1F}).edited, IsEmpty());
  EXPECT_FALSE(block.ended());
  block.step({1, 9, 2}, {.9F, 1.F, .9F});
  EXPECT_TRUE(block.ended());
  EXPECT_THAT(block.tokens(), ElementsAre(1, 5, 2));
}

TEST(JointThreshold, AnEditMayMaskATokenAgain) {
  EditedBlock block("joint_threshold", {kMask, kMask}, 2);
  block.step({1, 2}, {.9F, .9F});
  EXPECT_THAT(block.step({kMask, 2}, {.9F, .9F}).edited, ElementsAre(0));
  EXPECT_FALSE(block.ended());
  EXPECT_THAT(block.step({4, 2}, {.1F, .9F}).selected, ElementsAre(0));
  EXPECT_TRUE(block.ended());  // the second of two steps that began with a mask
}

TEST(Indel, DeleteRemovesItsPositionAndAMaskFillsTheBlockUp) {
  EditedBlock block("joint_threshold_indel", {kMask, kMask, kMask, kMask}, 4);
  block.step({1, 2, 3, 4}, {.9F, .9F, .9F, .1F});
  const EditChoice choice = block.step({1, kDelete, 3, 4}, {.9F, .9F, .9F, .1F});
  EXPECT_THAT(choice.selected, ElementsAre(3));
  EXPECT_THAT(choice.edited, IsEmpty());
  EXPECT_THAT(choice.deleted, ElementsAre(1));
  EXPECT_THAT(choice.inserted, ElementsAre(4));
  EXPECT_THAT(block.tokens(), ElementsAre(1, 3, 4, kMask));
}

TEST(Indel, SplitPutsAMaskBeforeTheTokenAndTheLastPositionGoes) {
  EditedBlock block("joint_threshold_indel", {kMask, kMask, kMask, kMask}, 4);
  block.step({1, 2, 3, 4}, {.9F, .9F, .9F, .1F});
  const EditChoice choice = block.step({1, kSplit, 3, 4}, {.9F, .9F, .9F, .1F});
  EXPECT_THAT(choice.inserted, ElementsAre(1));
  EXPECT_THAT(choice.deleted, ElementsAre(4));
  EXPECT_THAT(block.tokens(), ElementsAre(1, kMask, 2, 3));
}

TEST(Indel, DeletesAndSplitsOfOneStepCancelOut) {
  EditedBlock block("joint_threshold_indel", {kMask, kMask, kMask, kMask}, 4);
  block.step({1, 2, 3, 4}, {.9F, .9F, .9F, .1F});
  block.step({kSplit, kDelete, 3, 4}, {.9F, .9F, .9F, .1F});
  EXPECT_THAT(block.tokens(), ElementsAre(kMask, 1, 3, 4));
}

TEST(Indel, LeavesThePromptAndItsLiteralEditTokens) {
  EditedBlock block("joint_threshold_indel", {kDelete, kSplit, kMask, kMask}, 2, /*prompt=*/2);
  block.step({5, 6, kDelete, 8}, {.9F, .9F, .9F, .9F});
  EXPECT_THAT(block.tokens(), ElementsAre(kDelete, kSplit, 8, kMask));
}

TEST(Indel, TheLastStepFillsAllMasksWithoutEditTokens) {
  EditedBlock block("joint_threshold_indel,max_post_steps=1", {kMask, kMask, kMask}, 3);
  block.step({1, 2, 3}, {.9F, .9F, .9F});
  EXPECT_FALSE(block.ended());
  block.step({kSplit, kDelete, kMask}, {.9F, .9F, .9F});
  EXPECT_TRUE(block.ended());
  EXPECT_THAT(block.tokens(), ElementsAre(kSecond, kSecond, kSecond));
}

TEST(Indel, EndsWhenAStepWithoutMasksChangesNothing) {
  EditedBlock block("joint_threshold_indel", {kMask, kMask}, 2);
  block.step({1, 2}, {.9F, .9F});
  EXPECT_FALSE(block.ended());
  block.step({1, 2}, {.9F, .9F});
  EXPECT_TRUE(block.ended());
}

TEST(Indel, DecidesItsLeastCertainChangeAnewWhenABlockRepeats) {
  EditedBlock block("joint_threshold_indel", {kMask, kMask}, 2);
  block.step({1, 2}, {.9F, .9F});
  block.step({3, 4}, {.9F, .9F});
  block.step({1, 2}, {.8F, .6F});  // the block of the first step
  EXPECT_THAT(block.tokens(), ElementsAre(1, kSecond));
}

TEST(Indel, FromTheLastScheduledStepOnTakesAllMasks) {
  EditedBlock block("joint_threshold_indel,threshold=0.9", {kMask, kMask, kMask}, 1);
  EXPECT_THAT(block.step({1, kSplit, 3}, {.1F, .1F, .1F}).selected, ElementsAre(0, 2));
  EXPECT_THAT(block.tokens(), ElementsAre(1, kMask, kMask));  // SPLIT of a mask: two masks
  block.step({1, 2, 3}, {.1F, .1F, .1F});
  EXPECT_THAT(block.tokens(), ElementsAre(1, 2, 3));
}

std::string refused(const char* text) {
  try {
    read_strategy(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(EditOptions, RefuseWhatDoesNothing) {
  EXPECT_THAT(refused("joint_threshold,editing_threshold=0,max_post_steps=3"),
              HasSubstr("max_post_steps: expected editing_threshold above 0"));
  EXPECT_EQ(refused("joint_threshold,editing_threshold=0"), "accepted");
  EXPECT_EQ(refused("joint_threshold_indel,max_post_steps=3"), "accepted");
  EXPECT_THAT(refused("joint_threshold,editing_threshold=1.5"), HasSubstr("editing_threshold"));
  EXPECT_THAT(refused("joint_threshold,quota=even"), HasSubstr("'quota'"));
}

TEST(EditOptions, FitBlockCausalModelsAlone) {
  const auto why = [](const char* strategy, const StrategySite& site) {
    UnmaskingOptions options = read_strategy(strategy);
    try {
      check_strategy_fits(options, site);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("fits");
  };
  const StrategySite block_causal{.edit_tokens = true, .cache = "commit"};
  EXPECT_EQ(why("joint_threshold_indel", block_causal), "fits");
  EXPECT_EQ(why("joint_threshold", {.cache = "commit"}), "fits");
  EXPECT_THAT(why("joint_threshold_indel", {.cache = "commit"}), HasSubstr("delete_token_id"));
  EXPECT_THAT(why("joint_threshold", {.bidirectional = true, .cache = "none"}),
              HasSubstr("block-causal"));
  EXPECT_THAT(why("joint_threshold", {.logit_shift = true, .cache = "none"}),
              HasSubstr("token shift"));
}

}  // namespace
}  // namespace blockscope
