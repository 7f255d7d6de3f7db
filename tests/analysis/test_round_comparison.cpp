// Rounds of two runs of one prompt: where they are equal, and what is reported where they are not.
#include "analysis/metrics/round_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RoundRecord round(std::int64_t position, std::int64_t token, std::vector<std::int64_t> drafted,
                  std::vector<std::int64_t> target, std::int64_t accepted, std::int64_t next) {
  RoundRecord result;
  result.position = position;
  result.token = token;
  result.drafted = std::move(drafted);
  result.target = std::move(target);
  result.accepted = accepted;
  result.next = next;
  return result;
}

/// Rounds at 0, 3 and 4 of the answer.
DraftedSequence sequence(std::int64_t prompt = 2) {
  DraftedSequence result;
  result.start.prompt.assign(static_cast<std::size_t>(prompt), 1);
  result.rounds = {round(prompt, 5, {6, 7, 8}, {6, 7, 9}, 2, 9),
                   round(prompt + 3, 9, {1, 2, 3}, {4, 4, 4}, 0, 4),
                   round(prompt + 4, 4, {5, 6, 7}, {5, 6, 7}, 3, kUnknown)};
  return result;
}

RoundPairs changed(const std::function<void(DraftedSequence&)>& change) {
  DraftedSequence other = sequence();
  change(other);
  const RoundPairs there = pair_rounds(sequence(), other);
  const RoundPairs back = pair_rounds(other, sequence());
  EXPECT_EQ(there.position, back.position);
  EXPECT_EQ(there.equal, back.equal);
  EXPECT_EQ(there.first_a, back.first_b);
  return there;
}

TEST(PairRounds, FindsNothingInTheSame) {
  const RoundPairs pairs = pair_rounds(sequence(), sequence(7));
  EXPECT_TRUE(pairs.same()) << "positions count from the answer's beginning";
  EXPECT_EQ(pairs.lined_up, 3);
  EXPECT_EQ(pairs.equal, 3);
  EXPECT_THAT(pairs.reasons, IsEmpty());
}

TEST(PairRounds, SaysWhatIsDifferent) {
  RoundPairs pairs = changed([](DraftedSequence& other) { other.rounds[1].drafted[2] = 8; });
  EXPECT_EQ(pairs.position, 3);
  EXPECT_EQ(pairs.first_a, 1);
  EXPECT_EQ(pairs.equal, 2);
  EXPECT_THAT(pairs.reasons, ElementsAre("drafted token at block position 3: 3 in A, 8 in B"));
  pairs = changed([](DraftedSequence& other) { other.rounds[1].target[1] = 2; });
  EXPECT_THAT(pairs.reasons, ElementsAre("target's choice at block position 2: 4 in A, 2 in B"));
  pairs = changed([](DraftedSequence& other) { other.rounds[2].next = 3; });
  EXPECT_TRUE(pairs.same()) << "only one of them knows it";
  pairs = changed([](DraftedSequence& other) { other.rounds[0].token = 1; });
  EXPECT_THAT(pairs.reasons, ElementsAre("certain token: 5 in A, 1 in B"));
  pairs = changed([](DraftedSequence& other) { other.rounds[2].drafted.pop_back(); });
  EXPECT_THAT(pairs.reasons, ElementsAre("drafted tokens: 3 in A, 2 in B"));
}

TEST(PairRounds, ComparesOnlyWhatBothKnow) {
  const RoundPairs pairs = changed([](DraftedSequence& other) {
    other.rounds[1].target = {4, kUnknown, kUnknown};
    other.rounds[2].target.clear();
    other.rounds[0].token = kUnknown;
  });
  EXPECT_TRUE(pairs.same());
  EXPECT_EQ(pairs.equal, 3);
}

TEST(PairRounds, LinesUpAgainBehindAnotherAcceptedLength) {
  // 2 of 3 accepted, or 1 of 3 and then 0: both have a round at position 3 again.
  const RoundPairs pairs = changed([](DraftedSequence& other) {
    other.rounds[0] = round(2, 5, {6, 1, 8}, {6, 7, 9}, 1, 7);
    other.rounds.insert(other.rounds.begin() + 1, round(4, 7, {1, 1, 1}, {9, 1, 1}, 0, 9));
  });
  EXPECT_EQ(pairs.rounds_a, 3);
  EXPECT_EQ(pairs.rounds_b, 4);
  EXPECT_EQ(pairs.lined_up, 3);
  EXPECT_EQ(pairs.equal, 2);
  EXPECT_EQ(pairs.position, 0);
  EXPECT_THAT(pairs.reasons, ElementsAre("drafted token at block position 2: 7 in A, 1 in B",
                                         "accepted: 2 in A, 1 in B", "next token: 9 in A, 7 in B"));
}

TEST(PairRounds, TellsARunThatEndsEarlier) {
  const RoundPairs pairs = changed([](DraftedSequence& other) { other.rounds.pop_back(); });
  EXPECT_EQ(pairs.position, 4);
  EXPECT_EQ(pairs.first_a, 2);
  EXPECT_EQ(pairs.first_b, -1);
  EXPECT_THAT(pairs.reasons, ElementsAre("B has no round at this position"));
  EXPECT_EQ(pairs.lined_up, 2);
}

TEST(AcceptanceMean, LeavesOutRoundsWithoutDrafts) {
  AcceptanceMean mean;
  EXPECT_TRUE(std::isnan(mean.value()));
  DraftedSequence drafted = sequence();
  drafted.rounds.push_back(round(10, 1, {}, {}, 0, 2));
  mean.add(drafted);
  EXPECT_EQ(mean.rounds, 3);
  EXPECT_DOUBLE_EQ(mean.value(), 8.0 / 3.0);
}

TEST(RoundsObstacle, NeedsDraftsAndOneVocabulary) {
  TraceMeta draft;
  draft.has_draft = true;
  draft.vocab_size = 10;
  TraceMeta other = draft;
  EXPECT_THAT(rounds_obstacle(draft, other), IsEmpty());
  other.vocab_size = 11;
  EXPECT_THAT(rounds_obstacle(draft, other), HasSubstr("10 and one of 11"));
  other.has_draft = false;
  EXPECT_THAT(rounds_obstacle(draft, other), HasSubstr("none in the second"));
}

}  // namespace
}  // namespace blockscope
