// The numbers that panels export.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "decode_record/base/error.h"
#include "tests/viewer/view_model_test.h"
#include "viewer/model/heatmaps.h"
#include "viewer/model/panel_metrics.h"
#include "viewer/model/selection_text.h"
#include "viewer/model/trajectory.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::wait_for;
using testing::wait_until;

TEST(CsvTable, QuotesAndLeavesMissingValuesEmpty) {
  CsvTable table({"a", "with, comma"});
  table.add({1.5, std::string("say \"x\"")});
  table.add({std::nan(""), std::int64_t{-3}});
  EXPECT_EQ(table.text(), "a,\"with, comma\"\n1.5,\"say \"\"x\"\"\"\n,-3\n");
  EXPECT_EQ(table.rows(), 2U);
  EXPECT_THROW(table.add({1.0}), Error);
}

TEST(Tables, GridsNameTheModelsLayersAndHeads) {
  TraceMeta meta;
  meta.layers = {2, 5};
  meta.heads = {0, 3};
  const auto grid = with_range({2, 2, {0.5F, 1.0F, std::nanf(""), 0.25F}});
  EXPECT_EQ(heads_table(*grid, panel_metrics()[0], meta).text(),
            "layer,head,similarity of A_out [cosine]\n2,0,0.5\n2,3,1\n5,0,\n5,3,0.25\n");
}

TEST(Tables, MatricesHaveRowsAndColumnsTheRightWayRound) {
  const auto external = with_range({2, 3, {1, 2, 3, 4, 5, 6}});
  const MatrixAxes axes{"row", "column", {7, 8}, {0, 1, 2}};
  EXPECT_EQ(matrices_table(external.get(), nullptr, axes).text(),
            "row,column,A_out [cosine],A_in [cosine]\n"
            "7,0,1,\n7,1,2,\n7,2,3,\n8,0,4,\n8,1,5,\n8,2,6,\n");
}

TEST(Tables, TrajectoryHoldsEveryDecision) {
  ViewModel model;
  model.open(testing::kFrozenTrace);
  ASSERT_TRUE(wait_until(model, [&] { return model.overview() != nullptr; }));
  const auto data = wait_for<Trajectory>(model, [&] { return request_trajectory(model); });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  const CsvTable table = trajectory_table(*data.value);
  EXPECT_EQ(table.rows(), data.value->cells.size());
  EXPECT_THAT(table.text(),
              StartsWith("position,step,block,step in block,token,confidence,change,before\n"));
  EXPECT_THAT(export_name(model, "heads", "csv"), StartsWith("trace_schema_1-heads-sequence"));
  EXPECT_THAT(export_name(model, "heads", "csv"), HasSubstr("-layer"));
}

}  // namespace
}  // namespace blockscope
