// Recall, unions, EstAcc, query stages and decoding statistics on traces small enough to work out
// by hand; check_sets.py does the same with numpy on traces of models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "analysis/calibration/calibration.h"
#include "analysis/metrics/query_comparison.h"
#include "analysis/metrics/query_statistics.h"
#include "analysis/metrics/selection.h"
#include "analysis/metrics/similarity_matrix.h"
#include "decode_record/base/nan.h"
#include "tests/analysis/small_set_trace.h"

namespace blockscope {
namespace {

using fixture::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Pair;
using testing::run;
using testing::SmallSetTrace;
using testing::SmallStep;

SmallStep with_set(std::int64_t step, std::int64_t n, std::vector<std::int32_t> set,
                   std::vector<float> probability) {
  SmallStep result{.step = step, .context_length = n};
  result.ints[Field::set_topk] = std::move(set);
  result.floats[Field::set_probability] = std::move(probability);
  return result;
}

TEST(Recall, EveryPrefixAndTheBoundsOfWhatItCovers) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 2, 3);
  trace.sequence();
  trace.add(with_set(1, 10, {4, 7, 2}, {0.5F, 0.3F, 0.1F}));
  trace.add(with_set(2, 10, {7, 9, 4}, {0.4F, 0.2F, 0.1F}));
  trace.end(1.0F);
  const MetricResult result = run("recall", {trace.finish()}, {.set_sizes = {1, 2, 3}});
  const auto second = [&](const char* name, std::size_t k) {
    return result.array(name).at({0, 0, 1, k});
  };
  EXPECT_DOUBLE_EQ(second("recall", 0), 0.0);
  EXPECT_DOUBLE_EQ(second("recall", 1), 0.5);
  EXPECT_DOUBLE_EQ(second("recall", 2), 2.0 / 3.0);
  EXPECT_NEAR(second("covered", 0), 0.1, 1e-7) << "4 is the third of step 2";
  EXPECT_NEAR(second("covered", 1), 0.5, 1e-7);
  EXPECT_NEAR(second("covered", 2), 0.5, 1e-7) << "2 fell out";
  EXPECT_NEAR(second("covered_at_most", 2), 0.6, 1e-7);
  EXPECT_NEAR(second("covered_by_own", 1), 0.6, 1e-7);
  EXPECT_THAT(result.left_out, IsEmpty());
}

TEST(Recall, RowsWithNotMoreKeysThanKAreCountedPerSize) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 1, 4);
  trace.sequence();
  trace.add(with_set(1, 3, {0, 1, 2, -1}, {0.4F, 0.3F, 0.3F, kNaN}));
  trace.add(with_set(2, 3, {2, 1, 0, -1}, {0.4F, 0.3F, 0.3F, kNaN}));
  trace.end(1.0F);
  const MetricResult result = run("recall", {trace.finish()}, {.set_sizes = {1, 3, 4}});
  EXPECT_THAT(result.array("recall").terms, ElementsAre(0, 0, 0, 1, 0, 0));
  EXPECT_DOUBLE_EQ(result.array("recall").at({0, 0, 1, 0}), 0.0);
  EXPECT_THAT(result.left_out, ElementsAre(Pair("rows with N <= k (k = 3)", 1),
                                           Pair("rows with N <= k (k = 4)", 1)));
}

TEST(Recall, OneStepGapsAndNaN) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 1, 1);
  trace.sequence();
  trace.add(with_set(1, 9, {3}, {0.5F}));
  SmallStep hidden = with_set(1, 9, {3}, {0.5F});
  hidden.block = 1;
  hidden.recorded = false;
  hidden.ints.clear();
  hidden.floats.clear();
  trace.add(hidden);
  SmallStep behind = with_set(2, 9, {3}, {0.5F});
  behind.block = 1;
  trace.add(behind);
  for (const float p : {0.5F, kNaN}) {
    SmallStep step = with_set(p > 0.0F ? 1 : 2, 9, {3}, {p});
    step.block = 2;
    trace.add(step);
  }
  trace.end(1.0F);
  const MetricResult result = run("recall", {trace.finish()});
  EXPECT_DOUBLE_EQ(result.array("recall").at({0, 0, 1, 0}), 1.0);
  EXPECT_EQ(result.array("covered").terms.back(), 0);
  EXPECT_THAT(result.left_out,
              ElementsAre(Pair("blocks with one step", 1), Pair("steps behind a gap", 1),
                          Pair("values that are NaN or infinite", 3)));
}

TEST(Recall, DamagedSetsAreErrorsThatSayWhere) {
  const TempDir folder;
  int number = 0;
  for (const std::vector<std::int32_t>& set :
       {std::vector{5, 5}, std::vector{1, -9}, std::vector{1, 2000000000}}) {
    for (const std::int64_t damaged : {0, 1}) {
      SmallSetTrace trace(folder.file(std::to_string(number++) + ".h5"), 1, 2);
      trace.sequence();
      trace.add(with_set(1, 9, damaged == 0 ? set : std::vector{1, 2}, {0.5F, 0.5F}));
      trace.add(with_set(2, 9, damaged == 1 ? set : std::vector{1, 2}, {0.5F, 0.5F}));
      trace.end(1.0F);
      const std::string path = trace.finish();
      EXPECT_THAT(message_of([&] { run("recall", {path}); }),
                  HasSubstr(path + ":/sets/topk: row " + std::to_string(damaged)));
    }
  }
}

TEST(UnionSize, SharedAndSeparateTokensAndTheTrivialRow) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 3, 2);
  trace.sequence();
  SmallStep step;
  step.ints[Field::set_topk_token] = {0, 1, 1, 0, 0, 1};
  trace.add(step);
  step.step = 2;
  step.ints[Field::set_topk_token] = {0, 1, 2, 3, 4, 5};
  trace.add(step);
  step.step = 3;
  step.context_length = 2;
  trace.add(step);
  trace.end(1.0F);
  const MetricResult result = run("union_size", {trace.finish()});
  EXPECT_DOUBLE_EQ(result.array("union_size").at({0, 0, 0}), 1.0);
  EXPECT_DOUBLE_EQ(result.array("union_size").at({0, 0, 1}), 3.0);
  EXPECT_THAT(result.array("union_histogram").values, ElementsAre(1, 0, 0, 0, 1, 1, 0, 0, 0, 0));
  EXPECT_THAT(result.array("union_quantiles_all").values, ElementsAre(1, 1, 3, 3, 1, 1, 1, 1));
  EXPECT_THAT(result.left_out, ElementsAre(Pair("rows with N <= k", 1)));
}

TEST(EstimationAccuracy, BlockAndFirstStepOracleAgainstEachToken) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 2, 2);
  trace.sequence();
  SmallStep step = with_set(1, 10, {1, 2}, {0.5F, 0.1F});
  step.ints[Field::set_topk_token] = {1, 2, 1, 3};
  trace.add(step);
  step = with_set(2, 10, {3, 4}, {0.5F, 0.1F});
  step.ints[Field::set_topk_token] = {3, 4, 1, 3};
  trace.add(step);
  trace.end(1.0F);
  const MetricResult result = run("est_acc", {trace.finish()});
  EXPECT_THAT(result.array("est_acc").values, ElementsAre(0.75, 0.75, 0.75, 0.25));
  EXPECT_THAT(result.array("est_acc_later").values, ElementsAre(0.75, 0.25));
  EXPECT_THAT(result.array("est_acc_later").terms, ElementsAre(2, 2));
}

TEST(CoveredShare, RoundingNeverCoversMoreThanEverything) {
  // L_S above L_out, equal, log 2 below, and a query that is not valid.
  const CoveredShare share =
      covered_share(std::vector<float>{0.5F, 3.0F, 1.0F, 9.0F},
                    std::vector<float>{0.0F, 3.0F, 1.0F + std::log(2.0F), 0.0F},
                    std::vector<std::uint8_t>{1, 1, 1, 0});
  EXPECT_NEAR(share.sum, 1.0 + 1.0 + 0.5, 1e-6);
  EXPECT_EQ(share.terms, 3);
}

TEST(Selection, ASetOfTheWholePrefixIsCountedApart) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 1, 2, RecordLevel::full,
                      R"({"version":"test","policy":"recent"})", 2);
  trace.sequence();
  for (const std::int64_t n : {2, 3}) {
    SmallStep step = with_set(n - 1, n, {0, 1}, {0.5F, 0.5F});
    step.ints[Field::attention_selected] = {0, 1};
    step.ints[Field::set_topk_token] = {0, 1};
    step.floats[Field::attention_lse_external] = {0.0F};
    step.floats[Field::shadow_lse_external] = {std::log(4.0F)};
    step.floats[Field::shadow_output_error] = {0.5F};
    trace.add(step);
  }
  trace.end(1.0F);
  const MetricResult result = run("selection", {trace.finish()});
  EXPECT_THAT(result.left_out, ElementsAre(Pair("rows with N <= k", 1)));
  EXPECT_THAT(result.array("covered").terms, ElementsAre(0, 1));
  EXPECT_NEAR(result.array("covered").values[1], 0.25, 1e-6);
}

TEST(Router, ChoicesWithoutEarlierOnesAreNoPair) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 2, 0, RecordLevel::full, testing::kSmallRun, 0, 4);
  trace.sequence();
  SmallStep step;
  step.ints[Field::router_expert] = {0, 1, -1, -1};  // two rows; the second one was not recorded
  trace.add(step);
  step.step = 2;
  step.ints[Field::router_expert] = {1, 2, 2, 3};
  trace.add(step);
  trace.end(1.0F);
  const ResultArray agreement = run("router", {trace.finish()}).array("agreement");
  EXPECT_THAT(agreement.terms, ElementsAre(0, 1));
  EXPECT_DOUBLE_EQ(agreement.values[1], 0.5) << "of 1 and 2, 1 stays";
}

TEST(StepMatrix, IsOfTheFirstBlockWithTwoSteps) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 1, 0);
  trace.sequence();
  SmallStep step;
  step.floats[Field::attention_external] = {1.0F, 0.0F};
  trace.add(step);
  step.block = 1;
  trace.add(step);
  step.step = 2;
  step.floats[Field::attention_external] = {0.0F, 1.0F};
  trace.add(step);
  trace.end(1.0F);
  MatrixRequest request;
  request.kind = MatrixRequest::Kind::step;
  const MetricResult result = similarity_matrix(TraceGroup({trace.finish()}), request);
  EXPECT_THAT(result.arrays.at(0).values, ElementsAre(1.0, 0.0, 0.0, 1.0));
}

/// Step 1 lacks the second position; step 2 has both. The values of the first one stay.
SmallStep step_of_pair(std::int64_t number) {
  const float late = number == 1 ? 7.0F : 1.0F;
  SmallStep step{.step = number, .changed = number - 1};
  if (number == 1) step.valid = {1, 0};
  step.floats = {{Field::attention_external, {1.0F, 0.0F, late, 2.0F}},
                 {Field::attention_internal, {0.0F, 1.0F, 1.0F, 1.0F}},
                 {Field::attention_lse_external, {0.0F, late}},
                 {Field::attention_lse_internal, {0.0F, 0.0F}}};
  return step;
}

TEST(ReuseError, PositionsThatTheSourceLacksHaveNone) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 2, 0);
  trace.sequence();
  trace.add(step_of_pair(1));
  trace.add(step_of_pair(2));
  trace.end(1.0F);
  MetricOptions options;
  options.taus = {2.0};
  const ResultArray error = run("reuse_error", {trace.finish()}, options).array("relative_l2");
  EXPECT_EQ(error.terms.back(), 1);
  EXPECT_EQ(error.values.back(), 0.0);
}

TEST(Calibration, StoredSimilaritiesWeighByThePositionsOfBothSteps) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 2, 0, RecordLevel::summary);
  trace.sequence();
  for (std::int64_t number = 1; number <= 3; ++number) {
    SmallStep step{.step = number, .changed = number == 1 ? 0 : 1};
    if (number == 1) step.valid = {1, 0};
    // Step 2 shares one position with step 1; step 3 shares two with step 2.
    step.floats = {{Field::similarity_external, {number == 3 ? 1.0F : 0.25F}},
                   {Field::reuse_error, std::vector<float>(16, 1.0F)}};
    trace.add(step);
  }
  trace.end(1.0F);
  const CalibrationSums sums = accumulate_calibration(TraceGroup({trace.finish()}), {});
  EXPECT_DOUBLE_EQ(sums.similarity[0][0][0], (1 * 0.25 + 2 * 1.0) / 3.0);
  EXPECT_EQ(sums.count[0][0][0], 2);
}

TEST(QueryStatistics, GapsOfUnitVectors) {
  const std::vector<float> a{2, 0, 0, 3};
  const std::vector<float> b{0, 5, 0, 1};
  const std::vector<std::uint8_t> valid{1, 1};
  const UnitGaps both = unit_gaps(a, b, 2, valid);
  EXPECT_NEAR(both.per_position, std::sqrt(2.0) / 2.0, 1e-7);
  EXPECT_NEAR(both.block_average, std::sqrt(2.0) / 2.0, 1e-7);
  const std::vector<float> swapped{0, 3, 2, 0};
  const UnitGaps swap = unit_gaps(a, swapped, 2, valid);
  EXPECT_NEAR(swap.per_position, std::sqrt(2.0), 1e-7);
  EXPECT_NEAR(swap.block_average, 0.0, 1e-7) << "the average doesn't see a swap";
  EXPECT_NEAR(unit_gaps(a, b, 2, std::vector<std::uint8_t>{0, 1}).per_position, 0.0, 1e-7);
  EXPECT_NEAR(unit_gaps(std::vector<float>{0, 0}, b, 2, std::vector<std::uint8_t>{1}).per_position,
              1.0, 1e-7)
      << "a zero vector stays zero";
  EXPECT_TRUE(std::isnan(
      unit_gaps(std::vector<float>{kNaN, 0}, b, 2, std::vector<std::uint8_t>{1}).per_position));
  EXPECT_TRUE(std::isnan(unit_gaps(a, b, 2, std::vector<std::uint8_t>{0, 0}).per_position));
}

TEST(QueryStatistics, SummariesWithoutSetsAndAgainstJensen) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 2, 0, RecordLevel::summary);
  trace.sequence();
  trace.add({.step = 1});
  std::int64_t number = 2;
  for (const auto& [s3, s4] : {std::pair{0.5F, 0.25F}, std::pair{0.5F, 0.75F}}) {
    SmallStep step{.step = number++};
    step.floats = {{Field::query_gap, {s3}},
                   {Field::query_block_gap, {s4}},
                   {Field::hidden_gap, {0.125F}},
                   {Field::prediction_kl_step1, {2.0F, kNaN}}};
    trace.add(step);
  }
  trace.end(1.0F);
  const MetricResult result = run("query_statistics", {trace.finish()});
  const ResultArray& stages = result.array("stages");
  EXPECT_THAT(stages.terms, ElementsAre(2, 2, 1, 1, 0));
  EXPECT_DOUBLE_EQ(stages.values[0], 2.0);
  EXPECT_DOUBLE_EQ(stages.values[1], 0.125);
  EXPECT_DOUBLE_EQ(stages.values[3], 0.25);
  EXPECT_THAT(result.left_out,
              ElementsAre(Pair("masked predictions whose KL is NaN or was not recorded", 2),
                          Pair("values with S4 > S3: damaged data (Jensen)", 1)));
}

std::string paired(const std::string& path, float gap, std::int64_t token, std::int64_t changed,
                   std::vector<std::int64_t> prompt, std::int64_t steps = 3) {
  SmallSetTrace trace(path, 2, 0, RecordLevel::summary);
  trace.sequence(std::move(prompt));
  for (std::int64_t s = 1; s <= steps; ++s) {
    SmallStep step{.step = s, .changed = s == 1 ? 0 : changed, .decides = {s}, .token = token};
    if (s > 1) {
      step.floats = {{Field::query_gap, {gap}},
                     {Field::query_block_gap, {gap / 2}},
                     {Field::hidden_gap, {gap}},
                     {Field::prediction_kl_step1, {gap, gap}}};
    }
    trace.add(step);
  }
  trace.end(1.0F);
  return trace.finish();
}

TEST(QueryComparison, RelativeChangeOverSharedStepsOnly) {
  const TempDir folder;
  const TraceGroup trained({paired(folder.file("a.h5"), 0.25F, 1, 1, {1, 2})});
  const TraceGroup backbone({paired(folder.file("b.h5"), 0.5F, 1, 1, {1, 2}, 2)});
  const MetricResult result = compare_query_statistics(trained, backbone);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_DOUBLE_EQ(result.array("relative_change").values[stage], -0.5) << stage;
  }
  EXPECT_THAT(result.array("stages").terms, ElementsAre(2, 2, 1, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_EQ(result.left_out.at("trained: steps without a partner"), 1);
}

TEST(QueryComparison, TracesThatSawOtherTokensAreRefused) {
  const TempDir folder;
  const TraceGroup trained({paired(folder.file("a.h5"), 0.25F, 1, 1, {1, 2})});
  const auto error = [&](const char* name, std::int64_t token, std::int64_t changed,
                         std::vector<std::int64_t> prompt) {
    const TraceGroup other({paired(folder.file(name), 0.5F, token, changed, std::move(prompt))});
    return message_of([&] { compare_query_statistics(trained, other); });
  };
  EXPECT_THAT(error("b.h5", 2, 1, {1, 2}), HasSubstr("decided other tokens"));
  EXPECT_THAT(error("c.h5", 1, 2, {1, 2}), HasSubstr("M (changed) is 1 in the first and 2"));
  EXPECT_THAT(error("d.h5", 1, 1, {1, 3}), HasSubstr("no step of the same prompt"));
}

}  // namespace
}  // namespace blockscope
