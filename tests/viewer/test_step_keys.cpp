// What the Selection panel shows of a step, against sets that were written down by hand and against
// the metric `selection`.
#include "viewer/model/step_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"
#include "tests/viewer/sparse_trace.h"
#include "tests/viewer/view_model_test.h"
#include "viewer/model/panel_metrics.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kSparseContext;

class StepKeysOfATrace : public ::testing::Test {
 protected:
  void open(const std::string& path) {
    reader_.emplace(path);
    block_ = list_blocks(*reader_).at(0);
  }
  std::shared_ptr<const StepKeys> read(std::size_t step) {
    return read_step_keys(*reader_, block_, block_.steps.at(step - 1), 0, 0);
  }
  fixture::TempDir folder_;
  std::optional<TraceReader> reader_;
  BlockSteps block_;
};

TEST_F(StepKeysOfATrace, KeysReadLieBesideTheExactOnes) {
  open(testing::sparse_trace(folder_.file("a.h5")));
  const auto keys = read(2);
  EXPECT_EQ(keys->read, KeysRead::some);
  EXPECT_THAT(keys->selected, ElementsAre(10, 2900, 77));
  EXPECT_THAT(keys->exact, ElementsAre(2900, 10, 1500, 77));
  EXPECT_THAT(keys->first, ElementsAre(10, 2900, 500, 77));
  ASSERT_EQ(keys->heads.size(), 1U);
  EXPECT_NEAR(keys->heads[0].covered.value(), 0.5, 1e-6);
  EXPECT_DOUBLE_EQ(keys->heads[0].error.value(), 0.25);
  const KeyView view = compare_keys(*keys, KeysAgainst::read, 0);
  EXPECT_TRUE(view.compares);
  EXPECT_EQ(view.sets.hits, 2);
  EXPECT_EQ(view.sets.misses, 1);
  EXPECT_EQ(view.sets.extra, 1) << "77 is the exact set's fourth, and three were read";
  EXPECT_NEAR(view.exact_share, 0.7, 1e-6);
  // Compared with step 1's set, if a person chooses this.
  const KeyView all = compare_keys(*keys, KeysAgainst::first, 0);
  EXPECT_EQ(all.sets.compared, 4U);
  EXPECT_EQ(all.sets.hits, 3);
  const KeyView two = compare_keys(*keys, KeysAgainst::first, 2);
  EXPECT_EQ(two.sets.compared, 2U);
  EXPECT_EQ(two.sets.hits, 2);
  EXPECT_EQ(two.sets.extra, 0);
}

TEST_F(StepKeysOfATrace, TheMetricSaysTheSame) {
  const std::string path = testing::sparse_trace(folder_.file("a.h5"));
  open(path);
  const MetricResult metric = testing::run("selection", {path});
  const auto keys = read(2);
  EXPECT_DOUBLE_EQ(metric.array("block_accuracy").at({0, 0, 1}),
                   compare_keys(*keys, KeysAgainst::read, 0).sets.accuracy());
  EXPECT_DOUBLE_EQ(metric.array("covered").at({0, 0, 1}), keys->heads[0].covered.value());
  EXPECT_DOUBLE_EQ(metric.array("covered").at({0, 0, 2}), read(3)->heads[0].covered.value());
  const MetricResult recall = testing::run("recall", {path});
  const ResultArray& by_size = recall.array("recall");  // layer, kv_head, step, k
  for (std::size_t i = 0; i < by_size.axes[3].size(); ++i) {
    const auto k = static_cast<std::size_t>(by_size.axes[3].index[i]);
    EXPECT_DOUBLE_EQ(by_size.at({0, 0, 1, i}),
                     compare_keys(*keys, KeysAgainst::first, k).sets.accuracy());
  }
}

TEST_F(StepKeysOfATrace, StepsWithoutASetOfTheirOwn) {
  open(testing::sparse_trace(folder_.file("a.h5")));
  EXPECT_EQ(read(1)->read, KeysRead::everything);
  KeyView view = compare_keys(*read(1), KeysAgainst::read, 0);
  EXPECT_FALSE(view.compares);
  EXPECT_EQ(view.sets.hits, 3) << "as many as later steps read";
  EXPECT_STREQ(name_of(KeyMark::both, view), "exact");
  EXPECT_EQ(read(3)->read, KeysRead::nothing);
  view = compare_keys(*read(3), KeysAgainst::read, 0);
  EXPECT_FALSE(view.compares);
  EXPECT_EQ(view.sets.misses, 3);
  EXPECT_EQ(read(3)->heads[0].covered.value(), 0.0);
  const auto unrecorded = read(4);
  EXPECT_EQ(unrecorded->read, KeysRead::unknown);
  EXPECT_TRUE(compare_keys(*unrecorded, KeysAgainst::read, 0).sets.keys.empty());
}

TEST_F(StepKeysOfATrace, ATraceOfExactAttentionHasTheFirstStepsSetOnly) {
  open(testing::kFrozenTrace);
  const auto keys = read(2);
  EXPECT_EQ(keys->read, KeysRead::unknown);
  EXPECT_TRUE(keys->heads.empty());
  const KeyView view = compare_keys(*keys, KeysAgainst::read, 0);
  EXPECT_EQ(view.against, KeysAgainst::first);
  EXPECT_TRUE(view.compares);
  EXPECT_EQ(view.sets.compared, 8U);
  EXPECT_STREQ(name_of(KeyMark::chosen_only, view), "gone");
}

TEST_F(StepKeysOfATrace, ThePrefixIsThePromptAndWhatWasCommitted) {
  testing::SmallSetTrace trace(folder_.file("a.h5"), 2, 2, RecordLevel::sets);
  trace.sequence({5, 6, 7});
  testing::SmallStep step;
  step.context_length = 3;
  step.decides = {0, 1};
  step.token = 42;
  trace.add(step);
  step = {};
  step.block = 1;
  step.context_length = 5;
  trace.add(step);
  trace.end(1.0F);
  open(trace.finish());
  const auto blocks = list_blocks(*reader_);
  EXPECT_THAT(read_prefix_text(*reader_, blocks.at(0))->tokens,
              ElementsAre("piece5", "piece6", "piece7"));
  const auto text = read_prefix_text(*reader_, blocks.at(1));
  EXPECT_THAT(text->tokens, ElementsAre("piece5", "piece6", "piece7", "piece42", "piece42"));
  EXPECT_EQ(text->prompt_length, 3U);
  EXPECT_TRUE(text->has_pieces);
}

TEST_F(StepKeysOfATrace, KeysBeyondThePrefixOrTwiceAreDamage) {
  for (const std::vector<std::int32_t>& selected :
       {std::vector<std::int32_t>{10, kSparseContext, 77}, {10, 77, 10}}) {
    testing::SmallSetTrace trace(folder_.file(std::to_string(selected[2]) + ".h5"), 2, 4,
                                 RecordLevel::sets, R"({"version":"test","policy":"mage"})", 3);
    trace.sequence(std::vector<std::int64_t>(kSparseContext, 1));
    trace.add(testing::sparse_step(1, selected, {0, 1, 2, 3}, 0.0F));
    trace.end(1.0F);
    open(trace.finish());
    EXPECT_THAT(testing::message_of([&] { read(1); }),
                HasSubstr("/attention/selected: row 0, layer slot 0: "));
    EXPECT_THROW(read(1), CorruptTrace);
  }
}

TEST_F(StepKeysOfATrace, ItsTableHasEveryMarkedKey) {
  open(testing::sparse_trace(folder_.file("a.h5")));
  const auto keys = read(2);
  const KeyView view = compare_keys(*keys, KeysAgainst::read, 0);
  const CsvTable table = step_keys_table(*keys, view, *read_prefix_text(*reader_, block_));
  EXPECT_EQ(table.rows(), 4U);
  EXPECT_THAT(table.text(), HasSubstr("\n10,piece10,hit,1,2,0.2"));
  EXPECT_THAT(table.text(), HasSubstr("\n77,piece77,extra,3,4,0.05"));
  EXPECT_THAT(table.text(), HasSubstr("\n1500,piece60,missed,,3,0.1"));
}

TEST_F(StepKeysOfATrace, TheMetricsOfSparsePoliciesNeedOne) {
  const std::string path = testing::sparse_trace(folder_.file("a.h5"));
  open(path);
  const MetricResult metric = testing::run("selection", {path});
  const TraceMeta sparse = reader_->info().meta;
  const TraceMeta exact = TraceReader(testing::kFrozenTrace).info().meta;
  std::size_t found = 0;
  for (const PanelMetric& choice : panel_metrics()) {
    if (std::string_view(choice.metric) != "selection") continue;
    SCOPED_TRACE(choice.view.label);
    ++found;
    EXPECT_THAT(lacks(exact, choice).value_or(""), HasSubstr("--policy mage"));
    if (choice.level == "full") {
      EXPECT_THAT(lacks(sparse, choice).value_or(""), HasSubstr("--record full"));
      continue;
    }
    EXPECT_FALSE(lacks(sparse, choice).has_value());
    const float value = head_grid(metric, choice, sparse).values.at(0);
    // Step 3 read nothing: it counts in what was covered and in the error, and has no set.
    EXPECT_NEAR(value, std::string_view(choice.view.array) == "block_accuracy" ? 2.0 / 3.0 : 0.25,
                1e-6);
  }
  EXPECT_EQ(found, 4U);
}

}  // namespace
}  // namespace blockscope
