// What verify says about two runs, on cases small enough to work out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "decode_record/base/error.h"
#include "probe/verify/agreement.h"
#include "probe/verify/predicted_reads.h"
#include "probe/verify/verify_settings.h"

namespace blockscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(TokenAgreementTest, ComparesUpToTheFirstStopTokenOfEitherRun) {
  TokenAgreement agreement;
  compare_tokens({5, 6, 9, 1, 1}, {5, 6, 9, 2, 2}, {9}, agreement);  // filler after the stop
  EXPECT_EQ(agreement.positions, 3);
  EXPECT_EQ(agreement.equal, 3);
  EXPECT_EQ(agreement.identical, 1);
  // The first run stops after 2 tokens, the second after 5: its last 3 have no counterpart.
  compare_tokens({5, 9, 0, 0, 0}, {5, 6, 7, 8, 9}, {9}, agreement);
  EXPECT_EQ(agreement.positions, 8);
  EXPECT_EQ(agreement.equal, 4);
  EXPECT_EQ(agreement.identical, 1);
  EXPECT_EQ(agreement.sequences, 2);
  EXPECT_DOUBLE_EQ(agreement.share_equal(), 0.5);
  EXPECT_DOUBLE_EQ(agreement.share_identical(), 0.5);
}

TEST(TokenAgreementTest, WithoutAStopTokenComparesEverything) {
  TokenAgreement agreement;
  compare_tokens({1, 2, 3}, {1, 4, 3}, {}, agreement);
  EXPECT_EQ(agreement.positions, 3);
  EXPECT_EQ(agreement.equal, 2);
}

ReplayStep step(int64_t block, std::vector<int64_t> positions, std::vector<int64_t> tokens) {
  return {block, 1, std::move(positions), std::move(tokens), {}};
}

TEST(FirstDivergenceTest, FindsTheStepAndTheLowestPosition) {
  const std::vector<ReplayStep> a{step(2, {8}, {1}), step(2, {9, 11}, {2, 3}), step(3, {12}, {4})};
  EXPECT_FALSE(first_divergence(a, a, 8).has_value());

  std::vector<ReplayStep> other_token = a;
  other_token[1].tokens[1] = 7;
  auto found = first_divergence(a, other_token, 8);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 2);
  EXPECT_EQ(found->position, 3);  // 11 - 8

  std::vector<ReplayStep> other_position = a;
  other_position[1].positions[0] = 10;  // 9 is only in a, 10 only here
  found = first_divergence(a, other_position, 8);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 2);
  EXPECT_EQ(found->position, 1);

  const std::vector<ReplayStep> shorter(a.begin(), a.begin() + 2);
  for (const auto& runs : {std::pair{a, shorter}, std::pair{shorter, a}}) {
    found = first_divergence(runs.first, runs.second, 8);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, 3);
    EXPECT_EQ(found->position, 4);
  }
}

TEST(FirstDivergenceTest, TheOrderWithinAStepDoesNotMatter) {
  EXPECT_FALSE(
      first_divergence({step(0, {1, 2}, {5, 6})}, {step(0, {2, 1}, {6, 5})}, 0).has_value());
}

TEST(PairedScoresTest, CountsWhatBothRunsScored) {
  const PairedScores scores = paired_scores({1, 1, 0, 1, kNaN, 0}, {1, 0, 1, 0, 1, kNaN});
  EXPECT_EQ(scores.count, 4);
  EXPECT_EQ(scores.worse, 2);
  EXPECT_EQ(scores.better, 1);
  EXPECT_DOUBLE_EQ(scores.mean_a, 0.75);
  EXPECT_DOUBLE_EQ(scores.mean_b, 0.5);
  // Differences 0, -1, 1, -1: variance (3 - 1/4) / 3 = 11/12, over 4 prompts.
  EXPECT_NEAR(scores.error_difference, std::sqrt(11.0 / 12.0 / 4.0), 1e-12);
  // Scores 1, 1, 0, 1: variance (3 - 9/4) / 3 = 1/4.
  EXPECT_NEAR(scores.error_a, std::sqrt(0.25 / 4.0), 1e-12);
}

TEST(PairedScoresTest, TheSignTestIsTheBinomialTail) {
  const auto p_of = [](int worse, int better, int equal) {
    std::vector<double> a, b;
    for (int i = 0; i < worse; ++i) a.push_back(1), b.push_back(0);
    for (int i = 0; i < better; ++i) a.push_back(0), b.push_back(1);
    for (int i = 0; i < equal; ++i) a.push_back(1), b.push_back(1);
    return paired_scores(a, b);
  };
  EXPECT_DOUBLE_EQ(p_of(0, 0, 9).sign_test, 1.0);
  EXPECT_NEAR(p_of(1, 0, 9).sign_test, 1.0, 1e-12);  // 2 / 2
  EXPECT_NEAR(p_of(5, 0, 50).sign_test, 2.0 / 32.0, 1e-12);
  EXPECT_TRUE(p_of(5, 0, 50).within_noise());
  EXPECT_NEAR(p_of(6, 0, 50).sign_test, 2.0 / 64.0, 1e-12);
  EXPECT_FALSE(p_of(6, 0, 50).within_noise());
  EXPECT_NEAR(p_of(8, 2, 0).sign_test, 2.0 * (1 + 10 + 45) / 1024.0, 1e-12);
  EXPECT_NEAR(p_of(2, 8, 0).sign_test, p_of(8, 2, 0).sign_test, 1e-12);
  EXPECT_NEAR(p_of(3, 3, 0).sign_test, 1.0, 1e-12);
  EXPECT_GT(p_of(900, 100, 0).sign_test, 0.0);  // 1000 coins: no underflow to nonsense
  EXPECT_LT(p_of(900, 100, 0).sign_test, 1e-100);
}

TEST(PairedScoresTest, NothingScoredIsSaidSo) {
  const PairedScores scores = paired_scores({kNaN}, {kNaN});
  EXPECT_EQ(scores.count, 0);
  EXPECT_DOUBLE_EQ(scores.sign_test, 1.0);
}

TEST(SpreadTest, MedianAndRange) {
  EXPECT_DOUBLE_EQ(spread_of({3, 1, 2}).median, 2.0);
  EXPECT_DOUBLE_EQ(spread_of({4, 1, 2, 3}).median, 2.5);
  EXPECT_DOUBLE_EQ(spread_of({4, 1, 2, 3}).low, 1.0);
  EXPECT_DOUBLE_EQ(spread_of({4, 1, 2, 3}).high, 4.0);
  EXPECT_DOUBLE_EQ(spread_of({}).median, 0.0);
}

TEST(QuantileTest, InterpolatesAsNumpyDoes) {
  std::vector<float> values{3, 1, 2, 4};
  EXPECT_DOUBLE_EQ(quantile_of(values, 0.5), 2.5);
  EXPECT_NEAR(quantile_of(values, 0.95), 3.85, 1e-12);  // numpy.quantile([1, 2, 3, 4], .95)
  EXPECT_DOUBLE_EQ(quantile_of(values, 1.0), 4.0);
  std::vector<float> one{7};
  EXPECT_DOUBLE_EQ(quantile_of(one, 0.95), 7.0);
}

ReuseMasks one_mask(HeadMatrix<bool> heads) { return {{}, {std::move(heads)}}; }

// Two blocks: N = 8 and N = 12. M of the later steps: 1, 3, 0 and 2.
std::vector<PassRow> two_blocks() {
  std::vector<PassRow> rows{{false, 2, 1, 8, 0},  {false, 2, 2, 8, 1}, {false, 2, 3, 8, 3},
                            {false, 2, 4, 8, 0},  {true, 2, 0, 8, 4},  {false, 3, 1, 12, 0},
                            {false, 3, 2, 12, 2}, {true, 3, 0, 12, 2}};
  for (PassRow& row : rows) {
    row.decided = row.changed;
    row.changed_rows.assign(16, false);
    // Step 3 of the first block changes the position of step 2 once more.
    std::fill_n(row.changed_rows.begin(), row.changed, true);
  }
  return rows;
}

TEST(PredictedReadsTest, FollowsTheRuleStepByStep) {
  LayerSizes shape;
  shape.num_layers = 1;
  shape.num_heads = 2;
  shape.num_kv_heads = 1;
  const ReuseMasks all = one_mask({{true, true}});
  const auto read = [&](double tau, ReuseCount count) {
    return predicted_reads(two_blocks(), {tau, count}, all, shape).total_read();
  };
  // Denoising steps read 4 * 8 + 2 * 12 = 56 keys densely; a first step always reads.
  EXPECT_EQ(predicted_reads(two_blocks(), {1}, all, shape).total_rows(), 56);
  EXPECT_EQ(read(1, ReuseCount::step), 48);  // only the step with M = 0
  EXPECT_EQ(read(2, ReuseCount::step), 40);  // and M = 1
  EXPECT_EQ(read(3, ReuseCount::step), 28);  // and M = 2, in the second block
  EXPECT_EQ(read(4, ReuseCount::step), 20);  // and M = 3: the two first steps remain
  EXPECT_EQ(read(100, ReuseCount::step), 20);
  // Tokens since the last read: 1, then 4 if step 2 reused or else 3, then 0 after a read.
  EXPECT_EQ(read(1, ReuseCount::since_read), 48);
  EXPECT_EQ(read(2, ReuseCount::since_read), 40);
  EXPECT_EQ(read(3, ReuseCount::since_read), 28);
  EXPECT_EQ(read(4, ReuseCount::since_read), 28);  // 1 + 3 tokens at step 3: it reads
  EXPECT_EQ(read(5, ReuseCount::since_read), 20);
  EXPECT_EQ(predicted_reads(two_blocks(), {2}, all, shape).total_commits(), 20);
}

TEST(PredictedReadsTest, ReadsOnlyChangedRowsIfAsked) {
  const LayerSizes shape{1, 1, 1};
  const auto reads = [&](double tau) {
    const ReuseRule rule{tau, ReuseCount::since_read, ReuseRefresh::rows};
    return predicted_reads(two_blocks(), rule, one_mask({{true}}), shape);
  };
  // Two first steps with 16 rows; then 1 row, 3 rows, none; 2 rows.
  EXPECT_EQ(reads(1).products[0] - reads(1).products_skipped[0], 8 * (16 + 1 + 3) + 12 * (16 + 2));
  EXPECT_EQ(reads(1).total_read(), 48);
  // Step 2 reuses; step 3 reads the 3 rows that both steps changed.
  EXPECT_EQ(reads(2).products[0] - reads(2).products_skipped[0], 8 * (16 + 3) + 12 * (16 + 2));
  EXPECT_EQ(reads(2).total_read(), 40);
  EXPECT_EQ(reads(9).products[0] - reads(9).products_skipped[0], 8 * 16 + 12 * 16);
}

TEST(PredictedReadsTest, CountsTokensDecidedAsMaskAgain) {
  std::vector<PassRow> rows = two_blocks();
  rows[3].decided = 2;  // step 3 decided two tokens as [MASK]: M of step 4 is 0
  const auto read = [&](ReuseCount count) {
    return predicted_reads(rows, {2, count}, one_mask({{true}}), {1, 1, 1}).total_read();
  };
  EXPECT_EQ(read(ReuseCount::step), 40);
  EXPECT_EQ(read(ReuseCount::since_read), 48);
  // If only changed rows read, such a step reads none, and the count goes on.
  rows = two_blocks();
  rows[2].changed = 0;
  rows[2].decided = 3;  // step 2 decided three tokens as [MASK]
  rows[2].changed_rows.assign(16, false);
  rows[1].changed = rows[1].decided = 0;
  rows[1].changed_rows.assign(16, false);
  rows[3].changed = rows[3].decided = 1;
  rows[3].changed_rows[5] = true;
  const ReuseRule by_rows{2, ReuseCount::since_read, ReuseRefresh::rows};
  const ExternalReads reads = predicted_reads(rows, by_rows, one_mask({{true}}), {1, 1, 1});
  EXPECT_EQ(reads.products[0] - reads.products_skipped[0], 8 * (16 + 1) + 12 * (16 + 2));
}

TEST(PredictedReadsTest, AKvHeadIsReadUnlessItsWholeGroupReuses) {
  const LayerSizes shape{2, 4, 2};
  const ReuseMasks mask = one_mask({{true, true, true, false}, {false, false, true, true}});
  const ExternalReads reads = predicted_reads(two_blocks(), {4, ReuseCount::step}, mask, shape);
  EXPECT_EQ(reads.rows, (std::vector<int64_t>{56, 56, 56, 56}));
  EXPECT_EQ(reads.rows_read, (std::vector<int64_t>{20, 56, 56, 20}));
  EXPECT_EQ(reads.products_skipped,
            (std::vector<int64_t>{36 * 16, 36 * 16, 36 * 16, 0, 0, 0, 36 * 16, 36 * 16}));
  EXPECT_DOUBLE_EQ(reads.saving(), 72.0 / 224.0);
  EXPECT_DOUBLE_EQ(reads.saving_with_commits(), 72.0 / (224.0 + 4 * 20.0));
  // FLOPs belong to query heads: 5 of 8 heads skip 36 of 56 keys, 4 * B * D each.
  EXPECT_DOUBLE_EQ(reads.flops(48), 4.0 * 16 * 48 * 8 * 56);
  EXPECT_DOUBLE_EQ(reads.flops_avoided(48), 4.0 * 16 * 48 * 5 * 36);
}

TEST(PredictedReadsTest, CountsRowsAsRowsAndWeighsBytesByTheSizeOfALayersHeads) {
  LayerSizes shape{2, 2, 1, 24};
  shape.layer_kv_heads = {1, 1};
  shape.layer_head_dim = {16, 24};
  shape.layer_window = {5, 0};  // the first layer sees four keys before a block
  const ReuseMasks mask = one_mask({{true, true}, {false, false}});
  const ExternalReads reads = predicted_reads(two_blocks(), {4, ReuseCount::step}, mask, shape);
  EXPECT_EQ(reads.rows, (std::vector<int64_t>{6 * 4, 56}));
  EXPECT_EQ(reads.total_rows(), 24 + 56);
  EXPECT_EQ(reads.total_read(), 2 * 4 + 56);
  EXPECT_EQ(reads.commit_rows, (std::vector<int64_t>{4 + 4, 8 + 12}));
  EXPECT_EQ(reads.total_commits(), 28);
  const double bytes = 24 * 16 + 56 * 24;
  EXPECT_DOUBLE_EQ(reads.in_largest_rows(reads.rows), bytes / 24);
  EXPECT_DOUBLE_EQ(reads.saving(), 16 * 16 / bytes);
  EXPECT_DOUBLE_EQ(reads.saving_with_commits(), 16 * 16 / (bytes + 8 * 16 + 20 * 24));
  EXPECT_EQ(reads.total_products(), 2 * 16 * (24 + 56));
  EXPECT_DOUBLE_EQ(reads.flops(24), 4.0 * 2 * 16 * bytes);
}

TEST(PredictedReadsTest, AStepReadsByTheMaskOfItsRange) {
  const LayerSizes shape{1, 2, 2};
  // Head 0 reuses at steps 2 and 3, head 1 from step 3 on.
  const ReuseMasks masks{{{1, 3, 4}}, {{{true, false}}, {{true, true}}, {{false, true}}}};
  const ExternalReads reads = predicted_reads(two_blocks(), {9}, masks, shape);
  // The first block's steps 1 to 4 read 8 keys each, the second block's 1 and 2 read 12.
  EXPECT_EQ(reads.rows_read, (std::vector<int64_t>{8 + 8 + 12, 8 + 8 + 12 + 12}));
  EXPECT_EQ(reads.products_skipped, (std::vector<int64_t>{16 * (8 + 8 + 12), 16 * (8 + 8)}));
}

TEST(PredictedReadsTest, AnErrorBoundReadsWhenTheRowsSinceTheReadAreTooWrong) {
  std::vector<PassRow> rows = two_blocks();
  for (PassRow& row : rows) {  // the decided rows of two_blocks are the first ones
    row.masked.assign(16, true);
    std::fill_n(row.masked.begin(), 3, false);
  }
  const auto read = [&](double bound, double decided) {
    const ErrorBound rule{bound, {{1, 3}}, {{0.01, 0.0, decided}, {0.01, 0.0, 4.0 * decided}}};
    return predicted_reads(rows, {}, one_mask({{true}}), {1, 1, 1}, rule).total_read();
  };
  // 13 masks alone: sqrt(13 * 0.01 / 16) = 0.0901.
  EXPECT_EQ(read(0.09, 0.0), 56);
  EXPECT_EQ(read(0.0902, 0.0), 8 + 12);
  // Step 2 has one decided row (0.25: sqrt(0.38 / 16) = 0.154), step 3 three (1.0 each in its
  // range: 0.442), step 4 the same three if step 3 reused, or none.
  EXPECT_EQ(read(0.16, 0.25), 8 + 8 + 12 + 12);
  EXPECT_EQ(read(0.45, 0.25), 8 + 12);
  EXPECT_EQ(read(0.45, kNaN), 8 + 8 + 8 + 12 + 12);  // what was not measured can't be predicted
}

TEST(PredictedReadsTest, NoRowsNoSaving) {
  const ExternalReads reads = predicted_reads({}, {2}, one_mask({{true}}), {1, 1, 1});
  EXPECT_EQ(reads.total_rows(), 0);
  EXPECT_DOUBLE_EQ(reads.saving(), 0.0);
  EXPECT_DOUBLE_EQ(reads.saving_with_commits(), 0.0);
}

ReuseFile calibrated() {
  ReuseFile file;
  file.similarity = {{{0.2, 0.95, 0.99, 0.5}}};
  file.gamma = {0.9};
  file.tau = 3;
  file.reuse = one_mask({{false, true, true, false}});
  file.predicted = ReusePrediction{};
  file.predicted->point.byte_saving = 0.4;
  ReusePoint two_heads;
  two_heads.gamma = 0.94;
  two_heads.heads = 2;
  two_heads.byte_saving = 0.25;
  file.curves = {{2, {two_heads}}};
  return file;
}

SettingFlags sweep_flags(std::vector<int64_t> taus, std::vector<double> gammas) {
  SettingFlags flags;
  flags.policy.policy = "flashblock";
  flags.policy.reuse_file = "reuse.json";
  flags.sweep = true;
  flags.taus = std::move(taus);
  flags.gammas = std::move(gammas);
  return flags;
}

TEST(ReuseSettingsTest, TheFileComesFirstThenEveryTauBesideEveryGamma) {
  const auto settings = reuse_settings(sweep_flags({2, 4}, {0.6, 0.95}), calibrated(), 2);
  ASSERT_EQ(settings.size(), 5U);
  EXPECT_EQ(settings[0].tau, 3);
  EXPECT_EQ(settings[0].reuse, calibrated().reuse);
  EXPECT_EQ(settings[0].file_predicts, 0.4);
  EXPECT_EQ(settings[1].tau, 2);
  EXPECT_EQ(settings[1].reuse, one_mask({{false, true, true, false}}));
  EXPECT_EQ(settings[1].file_predicts, 0.25);  // the same mask as gamma = 0.94 makes
  EXPECT_EQ(settings[2].gamma, 0.95);
  EXPECT_EQ(settings[2].reuse, one_mask({{false, false, true, false}}));  // strictly greater
  EXPECT_FALSE(settings[2].file_predicts.has_value());
  EXPECT_EQ(settings[3].tau, 4);
  EXPECT_FALSE(settings[3].file_predicts.has_value());
}

TEST(ReuseSettingsTest, PinsOfTheFileHoldAtEveryGamma) {
  ReuseFile file = calibrated();
  file.pins = {{0, 0, true}, {0, 2, false}};
  const auto settings = reuse_settings(sweep_flags({2}, {0.6, 0.95}), file, 2);
  ASSERT_EQ(settings.size(), 3U);
  EXPECT_EQ(settings[1].reuse, one_mask({{true, true, false, false}}));
  EXPECT_EQ(settings[2].reuse, one_mask({{true, false, false, false}}));
}

TEST(ReuseSettingsTest, ASweepKeepsTheRangesAndTheBoundOfTheFile) {
  ReuseFile file = calibrated();
  file.reuse.ranges.first = {1, 3};
  file.similarity.push_back({{0.97, 0.1, 0.99, 0.99}});
  file.lse_bound = 0.1;
  file.lse_drift = {{{0.0, 0.1, 0.2, 0.0}}, {{0.0, 0.0, 0.0, kNotMeasured}}};
  file.gamma = {0.9, 0.95};
  file.reuse.heads = reuse_masks(file, file.gamma).heads;
  const auto settings = reuse_settings(sweep_flags({2}, {0.6, 0.98}), file, 2);
  ASSERT_EQ(settings.size(), 3U);
  EXPECT_FALSE(settings[0].gamma.has_value());  // two gammas
  EXPECT_EQ(settings[0].heads(), 1 + 2);
  EXPECT_EQ(settings[1].reuse,
            (ReuseMasks{{{1, 3}}, {{{false, true, false, false}}, {{true, false, true, false}}}}));
  EXPECT_EQ(
      settings[2].reuse,
      (ReuseMasks{{{1, 3}}, {{{false, false, false, false}}, {{false, false, true, false}}}}));
}

TEST(ReuseSettingsTest, WithoutGammasTheFilesCurveGivesThemEvenlyInItsSaving) {
  const double gammas[] = {0.5, 0.96, 0.97, 0.98, 0.99, 1.0};
  const double savings[] = {0.9, 0.9, 0.7, 0.45, 0.2, 0.0};
  ReuseCurve curve{2, {}};
  for (size_t i = 0; i < std::size(gammas); ++i) {
    ReusePoint point;
    point.gamma = gammas[i];
    point.byte_saving = savings[i];
    curve.points.push_back(point);
  }
  ReuseFile file = calibrated();
  file.curves = {{1, {ReusePoint{}}}, curve};
  std::vector<double> chosen;
  for (const ReuseSetting& setting : reuse_settings(sweep_flags({3}, {}), file, 2)) {
    chosen.push_back(*setting.gamma);
  }
  // Eighths of 0.9, each with the largest gamma that reaches it, once.
  EXPECT_EQ(chosen, (std::vector<double>{0.9, 0.96, 0.97, 0.98, 0.99}));  // the file's own first
  file.curves.pop_back();
  EXPECT_THROW(reuse_settings(sweep_flags({3}, {}), file, 2), CalibrationError);
}

TEST(ReuseSettingsTest, TauOfTheFlagBeatsTheFilesAndItsPrediction) {
  SettingFlags flags;
  flags.policy.tau = 2;
  const auto settings = reuse_settings(flags, calibrated(), 2);
  ASSERT_EQ(settings.size(), 1U);
  EXPECT_EQ(settings[0].tau, 2);
  EXPECT_EQ(settings[0].file_predicts, 0.25);
  ReuseFile by_hand;
  by_hand.reuse = one_mask({{true, true, false, false}});
  EXPECT_EQ(reuse_settings({}, by_hand, 2).front().tau, 2);
  EXPECT_FALSE(reuse_settings({}, by_hand, 2).front().file_predicts.has_value());
}

TEST(ReuseSettingsTest, RefusesWhatMakesNoSense) {
  ReuseFile by_hand;
  by_hand.reuse = one_mask({{true, true, false, false}});
  EXPECT_THROW(reuse_settings(sweep_flags({2}, {0.5}), by_hand, 2), CalibrationError);
  EXPECT_NO_THROW(check_setting_flags(sweep_flags({1}, {-1.0, 1.0})));
  for (const double gamma : {-1.01, 1.01, kNaN}) {
    EXPECT_THROW(check_setting_flags(sweep_flags({2}, {gamma})), UsageError);
  }
  EXPECT_THROW(check_setting_flags(sweep_flags({0}, {0.5})), UsageError);
  EXPECT_THROW(check_setting_flags(sweep_flags({}, {0.5})), UsageError);
  SettingFlags without_file = sweep_flags({2}, {0.5});
  without_file.policy.reuse_file.clear();
  EXPECT_THROW(check_setting_flags(without_file), UsageError);
}

}  // namespace
}  // namespace blockscope
