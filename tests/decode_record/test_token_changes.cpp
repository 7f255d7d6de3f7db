// What a delta did to the tokens of an answer: decided, edited, taken back, inserted, deleted.
#include "decode_record/frames/token_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockscope {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kMaskHere = 9;

SequenceDelta transfer(std::vector<std::int64_t> positions, std::vector<std::int64_t> tokens) {
  const std::vector<float> confidence(tokens.size(), 0.5F);
  return make_transfer(std::move(positions), std::move(tokens), confidence).rows.front();
}

void insert_mask(SequenceDelta& delta, std::int64_t position) {
  delta.insert_index.push_back(position);
  delta.insert_src_index.push_back(std::ssize(delta.decoded_tokens));
  delta.decoded_tokens.push_back(kMaskHere);
  delta.confidence.push_back(kUntouchedConfidence);
}

TEST(TokenChanges, TellsDecidedEditedAndTakenBackTokensApart) {
  std::vector<std::int64_t> tokens{kMaskHere, 1, 2, 3, kMaskHere};
  const StepChanges step =
      follow_delta(tokens, 0, transfer({0, 1, 2, 3}, {5, 6, kMaskHere, 3}), kMaskHere, 5);
  EXPECT_THAT(tokens, ElementsAre(5, 6, kMaskHere, 3, kMaskHere));
  ASSERT_EQ(step.changes.size(), 3U);  // position 3 took the token that it had
  EXPECT_EQ(step.changes[0].kind, ChangeKind::decided);
  EXPECT_EQ(step.changes[1].kind, ChangeKind::edited);
  EXPECT_EQ(step.changes[1].before, 1);
  EXPECT_EQ(step.changes[1].after, 6);
  EXPECT_EQ(step.changes[1].confidence, 0.5F);
  EXPECT_EQ(step.changes[2].kind, ChangeKind::taken_back);
  EXPECT_EQ(step.decided, 1);
  EXPECT_EQ(step.edited, 1);
  EXPECT_EQ(step.taken_back, 1);
  EXPECT_EQ(step.net_tokens, 0);
}

TEST(TokenChanges, CountsADeletionWithoutTheMaskThatFillsTheBlockUp) {
  std::vector<std::int64_t> tokens{1, 2,         3,
                                   4, kMaskHere, kMaskHere};  // a block of 4, then another one
  SequenceDelta delta = transfer({3}, {8});
  insert_mask(delta, 4);
  delta.delete_index = {1};
  const StepChanges step = follow_delta(tokens, 0, delta, kMaskHere, 4);
  EXPECT_THAT(tokens, ElementsAre(1, 3, 8, kMaskHere, kMaskHere, kMaskHere));
  EXPECT_EQ(step.deleted, 1);
  EXPECT_EQ(step.inserted, 0);
  EXPECT_EQ(step.edited, 1);
  EXPECT_EQ(step.net_tokens, -1);
  ASSERT_EQ(step.changes.size(), 3U);
  EXPECT_EQ(step.changes[0].kind, ChangeKind::moved);
  EXPECT_EQ(step.changes[1].kind, ChangeKind::edited);  // moved from position 3 to 2
  EXPECT_EQ(step.changes[1].position, 2);
  EXPECT_EQ(step.changes[1].before, 4);
  EXPECT_EQ(step.changes[2].after, kMaskHere);
}

TEST(TokenChanges, CountsAnInsertionWithoutThePositionThatItPushesOut) {
  std::vector<std::int64_t> tokens{1, 2, 3, 4};
  SequenceDelta delta;
  insert_mask(delta, 0);
  insert_mask(delta, 2);
  delta.delete_index = {4, 5};
  const StepChanges step = follow_delta(tokens, 0, delta, kMaskHere, 4);
  EXPECT_THAT(tokens, ElementsAre(kMaskHere, 1, 2, kMaskHere));
  EXPECT_EQ(step.inserted, 2);
  EXPECT_EQ(step.deleted, 0);
  EXPECT_EQ(step.net_tokens, -2);
}

TEST(TokenChanges, FollowsAPartOfTheAnswerAlone) {
  std::vector<std::int64_t> tokens{kMaskHere, kMaskHere};
  const StepChanges step = follow_delta(tokens, 4, transfer({3, 5, 6}, {1, 2, 3}), kMaskHere, 6);
  EXPECT_THAT(tokens, ElementsAre(kMaskHere, 2));
  EXPECT_EQ(step.decided, 1);
  EXPECT_EQ(step.changes.at(0).position, 5);
}

}  // namespace
}  // namespace blockscope
