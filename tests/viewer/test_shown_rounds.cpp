// What the Draft panel shows of a trace, against rounds that were written down by hand.
#include "viewer/model/shown_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"
#include "tests/analysis/small_set_trace.h"
#include "tests/viewer/draft_trace.h"
#include "tests/viewer/view_model_test.h"
#include "viewer/model/draft_view.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::rank_at;
using testing::share_at;

class ShownRoundsOfATrace : public ::testing::Test {
 protected:
  std::shared_ptr<const ShownRounds> read(std::int64_t sequence) { return read(path(), sequence); }
  static std::shared_ptr<const ShownRounds> read(const std::string& path, std::int64_t sequence,
                                                 JobControl&& control = JobControl()) {
    const TraceReader reader(path);
    return read_shown_rounds(reader, sequence, list_blocks(reader), control);
  }
  static std::shared_ptr<const DraftTotals> totals(const std::string& path) {
    const TraceReader reader(path);
    JobControl control;
    return read_draft_totals(reader, list_blocks(reader), control);
  }
  const std::string& path() {
    if (path_.empty()) path_ = testing::draft_trace(folder_.file("drafted.h5"));
    return path_;
  }
  fixture::TempDir folder_;
  std::string path_;
};

TEST_F(ShownRoundsOfATrace, RoundsFollowEachOtherThroughTheAnswer) {
  const auto rounds = read(0);
  ASSERT_EQ(rounds->rounds.size(), 3U);
  std::vector<std::int32_t> first, accepted, certain, next;
  for (const ShownRounds::Round& round : rounds->rounds) {
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
  EXPECT_THAT(next, ElementsAre(19, 10, 28)) << "the last one lies behind the answer";
  EXPECT_FLOAT_EQ(rounds->rounds[0].next_probability, 0.25F);
  EXPECT_TRUE(std::isnan(rounds->rounds[2].next_probability));
  EXPECT_EQ(rounds->round_of_row(3), 1U);
  EXPECT_EQ(rounds->round_of_row(4), 3U) << "a target's row is no round";
}

TEST_F(ShownRoundsOfATrace, CellsHoldWhatTheFileHolds) {
  const auto rounds = read(0);
  for (std::size_t round = 0; round < 3; ++round) {
    const auto row = static_cast<std::int64_t>(1 + 2 * round);
    for (std::int32_t p = 1; p < 4; ++p) {
      SCOPED_TRACE(std::to_string(round) + ", position " + std::to_string(p));
      const ShownRounds::Cell& cell = rounds->cell(round, p);
      if (cell.target != 0) {
        EXPECT_EQ(cell.target_rank_under_draft, rank_at(row, p));
        EXPECT_FLOAT_EQ(cell.target_probability_under_draft, share_at(row, p));
      }
      EXPECT_EQ(lacks_token(cell), cell.target == 0);
      EXPECT_EQ(cell.drafted_rank_under_target, rank_at(row, p + 1));
      EXPECT_FLOAT_EQ(cell.drafted_probability_under_target, share_at(row, p + 2));
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

TEST_F(ShownRoundsOfATrace, TheAnswerKnowsWhoToldEachToken) {
  const auto rounds = read(0);
  std::vector<std::int32_t> tokens, told_in, drafted_at;
  for (const ShownRounds::Told& told : rounds->answer) {
    tokens.push_back(told.token);
    told_in.push_back(told.round);
    drafted_at.push_back(told.drafted_at);
  }
  EXPECT_THAT(tokens, ElementsAre(5, 16, 19, 21, 22, 23, 10, 25));
  EXPECT_THAT(told_in, ElementsAre(-1, 0, 0, 1, 1, 1, 1, 2));
  EXPECT_THAT(drafted_at, ElementsAre(0, 1, 0, 1, 2, 3, 0, 1));
  EXPECT_THAT(describe_told(*rounds, 0), HasSubstr("from the prefill"));
  EXPECT_THAT(describe_told(*rounds, 2),
              HasSubstr("the target's own token, at the end of round 0"));
  EXPECT_THAT(describe_told(*rounds, 4), HasSubstr("in round 1 at block position 2 of 3"));
}

TEST_F(ShownRoundsOfATrace, TokensAreAcceptedRejectedOrBehind) {
  const auto rounds = read(0);
  EXPECT_EQ(outcome_of(rounds->rounds[0], 1), DraftOutcome::accepted);
  EXPECT_EQ(outcome_of(rounds->rounds[0], 2), DraftOutcome::rejected);
  EXPECT_EQ(outcome_of(rounds->rounds[0], 3), DraftOutcome::behind);
  EXPECT_EQ(outcome_of(rounds->rounds[1], 3), DraftOutcome::accepted);
  EXPECT_THAT(describe(*rounds, 0, 0), HasSubstr("certain token, decided before: \"piece5\" (#5)"));
  EXPECT_THAT(describe(*rounds, 0, 2), HasSubstr("answer position 2\nrejected"));
  EXPECT_THAT(describe(*rounds, 0, 2), HasSubstr("under the target: p 0.2500"));
  EXPECT_THAT(describe(*rounds, 0, 3), HasSubstr("the target's token: \"piece0\" (#0)\n"
                                                 "  under the draft: not in its vocabulary"));
  EXPECT_THAT(describe(*rounds, 1, 4),
              HasSubstr("after the drafted tokens, which were all accepted"));
  EXPECT_THAT(describe(*rounds, 2, 2),
              HasSubstr("beyond the answer's length, so not part of it\naccepted"));
  EXPECT_THAT(describe(*rounds, 2, 1), ::testing::Not(HasSubstr("not part of")));
}

/// One round, whose selector took the second candidate at position 1.
ShownRounds rounds_of_selector() {
  ShownRounds rounds;
  rounds.block_length = 3;
  rounds.gen_length = 8;
  rounds.num_candidates = 7;
  rounds.rounds.push_back({.row = 1, .drafted = 2});
  rounds.cells.resize(3);
  rounds.cells[1] = {.drafted = 41, .target = 46};
  rounds.cells[2] = {.drafted = 5, .target = 9};
  rounds.candidates.resize(21);
  for (std::int32_t i = 0; i < 7; ++i) {
    rounds.candidates[static_cast<std::size_t>(7 + i)] = {40 + i, 0.5F / static_cast<float>(1 + i),
                                                          i == 1 ? 2.5F : 1.0F};
  }
  return rounds;
}

TEST(SelectorsOfDrafts, ShowWhatTheyChoseFrom) {
  ShownRounds rounds = rounds_of_selector();
  EXPECT_THAT(describe(rounds, 0, 1),
              HasSubstr("selector: took candidate 1 of 7; the target's token is candidate 6\n"
                        "  0: #40: p 0.5000, score 1.000\n"
                        "  1: #41: p 0.2500, score 2.500, taken\n"));
  EXPECT_THAT(describe(rounds, 0, 1), ::testing::EndsWith("\n  4: #44: p 0.1000, score 1.000\n"
                                                          "  6: #46: p 0.0714, score 1.000, the "
                                                          "target's"));
  EXPECT_THAT(describe(rounds, 0, 2), ::testing::Not(HasSubstr("selector"))) << "not recorded";
  EXPECT_THAT(draft_rounds_table(rounds).text(),
              HasSubstr(",candidate taken,target's candidate\n"));
  rounds.cells[1].target = 9;
  EXPECT_THAT(describe(rounds, 0, 1), HasSubstr("of 7; the target's token is none of them\n"));
  EXPECT_TRUE(rounds_of_selector().candidates_at(0, 2).empty());
  EXPECT_EQ(rounds_of_selector().candidates_at(0, 1).size(), 7U);
}

TEST_F(ShownRoundsOfATrace, WhatWasNotRecordedIsMissing) {
  const auto rounds = read(1);
  ASSERT_EQ(rounds->rounds.size(), 3U);
  EXPECT_EQ(rounds->cell(0, 1).target, 34);
  EXPECT_EQ(rounds->cell(0, 2).drafted, -1);
  EXPECT_EQ(rounds->rounds[1].row, -1) << "nothing was drafted";
  EXPECT_EQ(rounds->rounds[1].drafted, 0);
  EXPECT_EQ(rounds->rounds[1].certain, 34);
  EXPECT_EQ(rounds->rounds[2].drafted, 1);
  EXPECT_EQ(rounds->rounds[2].next, 37);
  EXPECT_EQ(rounds->round_of_row(rounds->rounds[2].row), 2U);
  EXPECT_EQ(rounds->round_of_row(-1), 3U);
  for (std::size_t i = 1; i < kDraftColours; ++i) {
    const DraftValues values = count_values(*rounds, static_cast<DraftColour>(i));
    EXPECT_EQ(values.missing, 4U) << info_of(static_cast<DraftColour>(i)).name;
    EXPECT_EQ(values.recorded + values.lacking, 0U);
  }
  EXPECT_THAT(describe(*rounds, 0, 1), HasSubstr("under the target: not recorded"));
  EXPECT_THAT(describe(*rounds, 0, 2), HasSubstr("drafted token: not recorded"));
  EXPECT_THAT(describe(*rounds, 1, 1), HasSubstr("(#35), after the certain token: nothing was "));
  EXPECT_THAT(describe(*rounds, 2, 2),
              HasSubstr("(#37), after the drafted tokens, which were all accepted"));
  EXPECT_THAT(describe(*rounds, 2, 3), HasSubstr("nothing was drafted here"));
  EXPECT_EQ(draft_rounds_table(*rounds).rows(), 4U);
  EXPECT_THAT(draft_answer_table(*rounds).text(), HasSubstr("\n2,35, word35,1,\n3,36, word36,2,1"));
  ShownRounds::Cell cell = read(0)->cell(0, 3);
  EXPECT_TRUE(lacks_token(cell));
  cell.target_probability_under_draft = 0.25F;  // known, and only its rank is missing
  EXPECT_FALSE(lacks_token(cell));
  const DraftValues ranks = count_values(*read(0), DraftColour::target_rank_under_draft);
  EXPECT_EQ(ranks.recorded, 8U);
  EXPECT_EQ(ranks.lacking, 1U);
  EXPECT_EQ(ranks.missing, 0U);
}

TEST_F(ShownRoundsOfATrace, CountsLeaveOutWhatLiesBehindTheAnswer) {
  const auto counts = totals(path());
  // Accepted 1, 3 and 2; the last round has one token in the answer. And 0 and 1.
  EXPECT_EQ(counts->trace.rounds, 5);
  EXPECT_EQ(counts->trace.tokens, 2 + 4 + 2 + 1 + 2);
  EXPECT_DOUBLE_EQ(counts->trace.tokens_per_round(), 2.2);
  EXPECT_DOUBLE_EQ(counts->trace.survival(1), 0.8);
  EXPECT_DOUBLE_EQ(counts->trace.survival(2), 0.2);
  EXPECT_DOUBLE_EQ(counts->trace.survival(3), 0.2);
  ASSERT_EQ(counts->sequences.size(), 2U);
  EXPECT_EQ(counts->sequences[0].rounds, 3);
  EXPECT_EQ(counts->sequences[1].tokens, 3);
  EXPECT_TRUE(std::isnan(DraftCounts{}.tokens_per_round()));
  EXPECT_TRUE(std::isnan(DraftCounts{}.survival(1)));
  // The metric says the same.
  const MetricResult metric = testing::run("draft", {path()});
  for (std::size_t p = 1; p < 4; ++p) {
    EXPECT_DOUBLE_EQ(metric.array("survival").at({p - 1}), counts->trace.survival(p));
  }
}

TEST_F(ShownRoundsOfATrace, RanksFallIntoClasses) {
  const std::vector<std::pair<float, std::size_t>> cases = {
      {0, 0}, {1, 1}, {2, 2}, {4, 2}, {5, 3}, {19, 3}, {20, 4}, {99, 4}, {100, 5}, {150000, 5}};
  for (const auto& [rank, index] : cases) EXPECT_EQ(rank_class(rank), index) << rank;
}

TEST_F(ShownRoundsOfATrace, TablesHaveEveryPosition) {
  const auto rounds = read(0);
  const CsvTable table = draft_rounds_table(*rounds);
  EXPECT_EQ(table.rows(), 9U);
  EXPECT_THAT(table.text(), HasSubstr("\n0,2,2,rejected,17, word17,19, word19,"));
  EXPECT_THAT(table.text(), HasSubstr("\n0,3,3,behind,18, word18,0,piece0,,")) << "no rank";
  const CsvTable answer = draft_answer_table(*rounds);
  EXPECT_EQ(answer.rows(), 8U);
  EXPECT_THAT(answer.text(), HasSubstr("\n0,5,piece5,,\n1,16, word16,0,1\n2,19, word19,0,\n"));
}

TEST_F(ShownRoundsOfATrace, ThousandsOfRoundsAreReadInPieces) {
  const std::string path = testing::long_draft_trace(folder_.file("long.h5"), 3000, 8);
  const auto rounds = read(path, 0);
  ASSERT_EQ(rounds->rounds.size(), 3000U);
  EXPECT_EQ(rounds->rounds[2999].accepted, 2999 % 8);
  EXPECT_EQ(rounds->cell(2999, 1).drafted_rank_under_target, rank_at(2 * 2999 + 1, 2));
  EXPECT_EQ(rounds->answer.size(), 1U + 3000U / 8 * 36);
  EXPECT_DOUBLE_EQ(totals(path)->trace.tokens_per_round(), 4.5);
  EXPECT_THROW(read(path, 0, JobControl(1000)), JobControl::TooLarge);
  JobControl unwanted;
  unwanted.cancel();
  const TraceReader reader(path);
  EXPECT_THROW(read_shown_rounds(reader, 0, list_blocks(reader), unwanted), JobControl::Cancelled);
}

TEST_F(ShownRoundsOfATrace, AnAcceptanceBeyondTheBlockIsDamage) {
  testing::DraftTrace trace(folder_.file("bad.h5"));
  trace.sequence(8, 5);
  trace.add({{16, 17, 18, 19}, {16, 17, 18, 19}, 4, 20});
  trace.end();
  const std::string path = trace.finish();
  EXPECT_THAT(testing::message_of([&] { read(path, 0); }),
              HasSubstr("bad.h5:/draft/accepted: row 1: expected -1 to 3, got 4"));
  EXPECT_THROW(read(path, 0), CorruptTrace);
}

}  // namespace
}  // namespace blockscope
