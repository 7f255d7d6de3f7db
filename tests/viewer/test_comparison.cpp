// The Compare panel without its window.
#include "viewer/model/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/analysis/trace_maker.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/viewer/view_model_test.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using testing::wait_for;
using testing::wait_until;

class TwoTraces : public ::testing::Test {
 protected:
  void open(const testing::TraceMakerOptions& a, const testing::TraceMakerOptions& b) {
    testing::make_trace(folder_.file("a.h5"), a);
    testing::make_trace(folder_.file("b.h5"), b);
    model_.open(folder_.file("a.h5"));
    model_.open(folder_.file("b.h5"));
    ASSERT_TRUE(wait_until(model_, [&] { return model_.other_trace().has_value(); }));
  }
  fixture::TempDir folder_;
  ViewModel model_;
};

testing::TraceMakerOptions with_seed(std::uint64_t seed) {
  testing::TraceMakerOptions options;
  options.seed = seed;
  return options;
}

TEST_F(TwoTraces, DifferenceOfGridsIsBMinusA) {
  open(with_seed(1), with_seed(2));
  const auto data = wait_for<MetricComparison>(
      model_, [&] { return compare_metric(model_, 0, CompareScope::matched); });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  const MetricComparison& both = *data.value;
  ASSERT_TRUE(both.grid_a && both.grid_b && both.grid_difference);
  bool any = false;
  for (std::size_t i = 0; i < both.grid_a->matrix.values.size(); ++i) {
    const float expected = both.grid_b->matrix.values[i] - both.grid_a->matrix.values[i];
    EXPECT_NEAR(both.grid_difference->matrix.values[i], expected, 1e-6F);
    any = any || std::abs(expected) > 1e-4F;
  }
  EXPECT_TRUE(any) << "two seeds gave one trace: nothing was tested";
  model_.swap_traces();
  EXPECT_EQ(model_.selection().trace, 1U);
  EXPECT_EQ(model_.other_trace(), std::optional<std::size_t>(0));
  const auto reverse = wait_for<MetricComparison>(
      model_, [&] { return compare_metric(model_, 0, CompareScope::matched); });
  ASSERT_TRUE(reverse.value && reverse.value->grid_difference);
  EXPECT_FLOAT_EQ(reverse.value->grid_difference->matrix.values[0],
                  -both.grid_difference->matrix.values[0]);
}

TEST_F(TwoTraces, OtherModelsAreShownWithoutADifference) {
  testing::TraceMakerOptions larger = with_seed(2);
  larger.layers = 4;
  open(with_seed(1), larger);
  const auto pair = wait_for<PairPayload>(model_, [&] { return compare_pair(model_); });
  ASSERT_EQ(pair.state, DataState::ready) << pair.message;
  EXPECT_FALSE(pair.value->same_architecture);
  EXPECT_THAT(pair.value->differences, ::testing::Contains(HasSubstr("3 in A, 4 in B")));
  const auto data = wait_for<MetricComparison>(
      model_, [&] { return compare_metric(model_, 0, CompareScope::matched); });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  EXPECT_TRUE(data.value->grid_a && data.value->grid_b);
  EXPECT_FALSE(data.value->grid_difference);
}

TEST_F(TwoTraces, ALevelThatIsTooLowIsToldBesideTheOtherSide) {
  testing::TraceMakerOptions low = with_seed(1);
  low.level = RecordLevel::trajectory;
  open(with_seed(1), low);
  const auto data = wait_for<MetricComparison>(
      model_, [&] { return compare_metric(model_, 0, CompareScope::matched); });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  EXPECT_TRUE(data.value->grid_a);
  EXPECT_FALSE(data.value->grid_b);
  EXPECT_THAT(data.value->problem_b, HasSubstr("--record"));
}

TEST_F(TwoTraces, TokensOfOneSequenceAreComparedWithItsPartner) {
  open(with_seed(1), with_seed(1));
  const auto data = wait_for<TokensPayload>(model_, [&] { return compare_trajectories(model_); });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  EXPECT_EQ(data.value->match.a, model_.block()->sequence);
  EXPECT_DOUBLE_EQ(data.value->tokens.share_equal(), 1.0);
  EXPECT_EQ(data.value->text_a, data.value->text_b);
}

TEST_F(TwoTraces, ASequenceWithoutAPartnerIsTold) {
  testing::TraceMakerOptions other = with_seed(1);
  other.prompt = 9;
  other.sequences = 1;
  testing::TraceMakerOptions two = with_seed(1);
  two.sequences = 2;
  open(two, other);
  Selection selection = model_.selection();
  selection.block = model_.overview()->blocks.size() - 1;  // of "made-1", which B lacks
  model_.select(selection);
  const auto data = wait_for<TokensPayload>(model_, [&] { return compare_trajectories(model_); });
  EXPECT_EQ(data.state, DataState::failed);
  EXPECT_THAT(data.message, HasSubstr("no partner"));
  const auto pair = wait_for<PairPayload>(model_, [&] { return compare_pair(model_); });
  EXPECT_EQ(
      pair.value->text(),
      "1 sequence in both (1 by name only: their prompt tokens differ); 1 only in A, 0 only in B");
}

TEST_F(TwoTraces, QueryStatisticsNeedAReplayedPair) {
  open(with_seed(1), with_seed(1));
  const auto same = wait_for<MetricPayload>(model_, [&] { return compare_queries(model_); });
  ASSERT_EQ(same.state, DataState::ready) << same.message;
  const ResultArray& change = same.value->result.array("relative_change");
  EXPECT_NEAR(change.values.at(2), 0.0, 1e-9);
}

TEST_F(TwoTraces, ClosingTheOtherLeavesNothingToCompare) {
  open(with_seed(1), with_seed(1));
  model_.close(1);
  EXPECT_FALSE(model_.other_trace().has_value());
  EXPECT_EQ(compare_pair(model_).state, DataState::loading);
}

}  // namespace
}  // namespace blockscope
