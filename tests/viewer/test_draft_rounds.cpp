// What the Draft panel shows of a trace, against rounds that were written down by hand.
#include "viewer/draft_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "decode_record/error.h"
#include "decode_record/trace_reader.h"
#include "tests/viewer/draft_trace.h"
#include "tests/viewer/view_model_test.h"
#include "viewer/draft_view.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::rank_at;
using testing::share_at;

class DraftRoundsOfATrace : public ::testing::Test {
 protected:
  std::shared_ptr<const DraftRounds> read(std::int64_t sequence) {
    const TraceReader reader(path());
    JobControl control;
    return read_draft_rounds(reader, sequence, control);
  }
  const std::string& path() {
    if (path_.empty()) path_ = testing::draft_trace(folder_.file("drafted.h5"));
    return path_;
  }
  fixture::TempDir folder_;
  std::string path_;
};

TEST_F(DraftRoundsOfATrace, RoundsFollowEachOtherThroughTheAnswer) {
  const auto rounds = read(0);
  ASSERT_EQ(rounds->rounds.size(), 3U);
  std::vector<std::int32_t> first, accepted, certain, next;
  for (const DraftRounds::Round& round : rounds->rounds) {
    first.push_back(round.first_position);
    accepted.push_back(round.accepted);
    certain.push_back(round.certain);
    next.push_back(round.next);
    EXPECT_EQ(round.draft_ns, 2'000'000);
    EXPECT_EQ(round.target_ns, 5'000'000);
  }
  EXPECT_THAT(first, ElementsAre(0, 2, 6));
  EXPECT_THAT(accepted, ElementsAre(1, 3, 2));
  EXPECT_THAT(certain, ElementsAre(5, 19, 10));
  EXPECT_THAT(next, ElementsAre(19, 10, -1));
  EXPECT_FLOAT_EQ(rounds->rounds[0].next_probability, 0.25F);
  EXPECT_TRUE(std::isnan(rounds->rounds[2].next_probability));
  EXPECT_EQ(rounds->round_of_row(3), 1U);
  EXPECT_EQ(rounds->round_of_row(4), 3U) << "a target's row is no round";
  EXPECT_EQ(rounds->target_of(1), 10) << "behind a whole block";
  EXPECT_EQ(rounds->target_of(2), 28) << "behind the answer's end";
}

TEST_F(DraftRoundsOfATrace, CellsHoldWhatTheFileHolds) {
  const auto rounds = read(0);
  for (std::size_t round = 0; round < 3; ++round) {
    const auto row = static_cast<std::int64_t>(1 + 2 * round);
    for (std::int32_t p = 1; p < 4; ++p) {
      SCOPED_TRACE(std::to_string(round) + ", position " + std::to_string(p));
      const DraftRounds::Cell& cell = rounds->cell(round, p);
      if (cell.target != 0) {
        EXPECT_EQ(cell.target_rank, rank_at(row, p));
        EXPECT_FLOAT_EQ(cell.target_probability, share_at(row, p));
      }
      EXPECT_EQ(lacks_token(cell), cell.target == 0);
      EXPECT_EQ(cell.draft_rank, rank_at(row, p + 1));
      EXPECT_FLOAT_EQ(cell.draft_probability, share_at(row, p + 2));
      EXPECT_FLOAT_EQ(cell.draft_entropy, share_at(row, p + 3));
      EXPECT_FLOAT_EQ(cell.target_entropy, share_at(row, p + 4));
      EXPECT_FLOAT_EQ(cell.confidence, share_at(row, p + 5));
    }
  }
  EXPECT_EQ(rounds->cell(0, 2).drafted, 17);
  EXPECT_EQ(rounds->cell(0, 2).target, 19);
  EXPECT_EQ(rounds->text(17), " word17");
  EXPECT_EQ(rounds->text(10), "\u23CE");
}

TEST_F(DraftRoundsOfATrace, TheAnswerKnowsWhoToldEachToken) {
  const auto rounds = read(0);
  std::vector<std::int32_t> tokens, told_in, drafted_at;
  for (const DraftRounds::Told& told : rounds->answer) {
    tokens.push_back(told.token);
    told_in.push_back(told.round);
    drafted_at.push_back(told.drafted_at);
  }
  EXPECT_THAT(tokens, ElementsAre(5, 16, 19, 21, 22, 23, 10, 25));
  EXPECT_THAT(told_in, ElementsAre(-1, 0, 0, 1, 1, 1, 1, 2));
  EXPECT_THAT(drafted_at, ElementsAre(0, 1, 0, 1, 2, 3, 0, 1));
  EXPECT_THAT(describe_told(*rounds, 0), HasSubstr("from the prefill"));
  EXPECT_THAT(describe_told(*rounds, 2), HasSubstr("the target's own, at the end of round 0"));
  EXPECT_THAT(describe_told(*rounds, 4), HasSubstr("in round 1 at block position 2 of 3"));
}

TEST_F(DraftRoundsOfATrace, TokensAreAcceptedRejectedOrBehind) {
  const auto rounds = read(0);
  EXPECT_EQ(outcome_of(rounds->rounds[0], 1), DraftOutcome::accepted);
  EXPECT_EQ(outcome_of(rounds->rounds[0], 2), DraftOutcome::rejected);
  EXPECT_EQ(outcome_of(rounds->rounds[0], 3), DraftOutcome::behind);
  EXPECT_EQ(outcome_of(rounds->rounds[1], 3), DraftOutcome::accepted);
  EXPECT_THAT(describe(*rounds, 0, 0), HasSubstr("certain token, decided before: \"piece5\" (#5)"));
  EXPECT_THAT(describe(*rounds, 0, 2), HasSubstr("answer position 2\nrejected"));
  EXPECT_THAT(describe(*rounds, 0, 2), HasSubstr("under the target: p 0.2500"));
  EXPECT_THAT(describe(*rounds, 0, 3), HasSubstr("the target's \"piece0\" (#0)\n"
                                                 "  under the draft: not in its vocabulary"));
  EXPECT_THAT(describe(*rounds, 1, 4), HasSubstr("behind a block that was accepted whole"));
  EXPECT_THAT(describe(*rounds, 2, 2), HasSubstr("accepted\nno part of the answer"));
  EXPECT_THAT(describe(*rounds, 2, 1), ::testing::Not(HasSubstr("no part of")));
}

TEST_F(DraftRoundsOfATrace, WhatWasNotRecordedIsMissing) {
  const auto rounds = read(1);
  ASSERT_EQ(rounds->rounds.size(), 2U);
  EXPECT_EQ(rounds->cell(0, 1).target, 34);
  EXPECT_EQ(rounds->rounds[1].accepted, -1);
  EXPECT_EQ(outcome_of(rounds->rounds[1], 1), DraftOutcome::unknown);
  EXPECT_EQ(rounds->target_of(1), -1);
  for (std::size_t i = 1; i < kDraftColours; ++i) {
    const DraftValues values = count_values(*rounds, static_cast<DraftColour>(i));
    EXPECT_EQ(values.missing, 6U) << info_of(static_cast<DraftColour>(i)).name;
    EXPECT_EQ(values.recorded + values.lacking, 0U);
  }
  EXPECT_THAT(describe(*rounds, 0, 1), HasSubstr("under the target: not recorded"));
  EXPECT_THAT(describe(*rounds, 1, 1), HasSubstr("whether it was accepted was not recorded"));
  const DraftValues ranks = count_values(*read(0), DraftColour::target_rank);
  EXPECT_EQ(ranks.recorded, 8U);
  EXPECT_EQ(ranks.lacking, 1U);
  EXPECT_EQ(ranks.missing, 0U);
}

TEST_F(DraftRoundsOfATrace, CountsLeaveOutWhatLiesBehindTheAnswer) {
  const TraceReader reader(path());
  JobControl control;
  const auto totals = read_draft_totals(reader, control);
  // Accepted 1, 3, 2, of which the last has one token in the answer; and 0 in the other sequence.
  EXPECT_EQ(totals->trace.rounds, 4);
  EXPECT_EQ(totals->trace.unknown, 1);
  EXPECT_EQ(totals->trace.decided, 5);
  EXPECT_DOUBLE_EQ(totals->trace.tokens_per_round(), 5.0 / 4.0 + 1.0);
  EXPECT_DOUBLE_EQ(totals->trace.survival(1), 0.75);
  EXPECT_DOUBLE_EQ(totals->trace.survival(2), 0.5);
  EXPECT_DOUBLE_EQ(totals->trace.survival(3), 0.25);
  ASSERT_EQ(totals->sequences.size(), 2U);
  EXPECT_EQ(totals->sequences[0].rounds, 3);
  EXPECT_EQ(totals->sequences[1].decided, 0);
  EXPECT_TRUE(std::isnan(DraftCounts{}.survival(1)));
}

TEST_F(DraftRoundsOfATrace, RanksFallIntoClasses) {
  const std::vector<std::pair<float, std::size_t>> cases = {
      {0, 0}, {1, 1}, {2, 2}, {4, 2}, {5, 3}, {19, 3}, {20, 4}, {99, 4}, {100, 5}, {150000, 5}};
  for (const auto& [rank, index] : cases) EXPECT_EQ(rank_class(rank), index) << rank;
}

TEST_F(DraftRoundsOfATrace, TablesHaveEveryPosition) {
  const auto rounds = read(0);
  const CsvTable table = draft_rounds_table(*rounds);
  EXPECT_EQ(table.rows(), 9U);
  EXPECT_THAT(table.text(), HasSubstr("\n0,2,2,rejected,17, word17,19, word19,"));
  EXPECT_THAT(table.text(), HasSubstr("\n0,3,3,behind,18, word18,0,piece0,,")) << "no rank";
  const CsvTable answer = draft_answer_table(*rounds);
  EXPECT_EQ(answer.rows(), 8U);
  EXPECT_THAT(answer.text(), HasSubstr("\n0,5,piece5,,\n1,16, word16,0,1\n2,19, word19,0,\n"));
}

TEST_F(DraftRoundsOfATrace, ThousandsOfRoundsAreReadInPieces) {
  const std::string path = testing::long_draft_trace(folder_.file("long.h5"), 3000, 8);
  const TraceReader reader(path);
  JobControl control;
  const auto rounds = read_draft_rounds(reader, 0, control);
  ASSERT_EQ(rounds->rounds.size(), 3000U);
  EXPECT_EQ(rounds->rounds[2999].accepted, 2999 % 8);
  EXPECT_EQ(rounds->cell(2999, 1).draft_rank, rank_at(2 * 2999 + 1, 2));
  EXPECT_EQ(rounds->answer.size(), 1U + 3000U / 8 * 36);
  EXPECT_DOUBLE_EQ(read_draft_totals(reader, control)->trace.tokens_per_round(), 4.5);
  JobControl small(1000);
  EXPECT_THROW(read_draft_rounds(reader, 0, small), JobControl::TooLarge);
  control.cancel();
  EXPECT_THROW(read_draft_rounds(reader, 0, control), JobControl::Cancelled);
}

TEST_F(DraftRoundsOfATrace, AnAcceptanceBeyondTheBlockIsDamage) {
  testing::DraftTrace trace(folder_.file("bad.h5"));
  trace.sequence(8, 5);
  trace.add({{16, 17, 18, 19}, {16, 17, 18, 19}, 4, 20});
  trace.end();
  const TraceReader reader(trace.finish());
  JobControl control;
  try {
    read_draft_rounds(reader, 0, control);
    FAIL() << "no error";
  } catch (const CorruptTrace& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("bad.h5:/draft/accepted: row 1: expected at most 3, got 4"));
  }
  EXPECT_THROW(read_draft_totals(reader, control), CorruptTrace);
}

}  // namespace
}  // namespace blockscope
