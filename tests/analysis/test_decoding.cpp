// Decoding statistics and curves on traces small enough to work out by hand.
#include "analysis/metrics/decoding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/metrics/decoding_curves.h"
#include "tests/analysis/small_set_trace.h"

namespace blockscope {
namespace {

using fixture::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Pair;
using testing::run;
using testing::SmallSetTrace;

constexpr const char* kReplay =
    R"({"version":"test","policy":"exact","strategy":"threshold","replay":"a.h5"})";

TEST(Decoding, SettledPositionsMAndBlocksCutOff) {
  const TempDir folder;
  SmallSetTrace trace(folder.file("a.h5"), 4, 0, RecordLevel::trajectory);
  trace.sequence();
  trace.add({.step = 1, .decides = {0, 2}});
  trace.add({.step = 2, .changed = 2, .decides = {1, 3}});
  trace.end(0.5F);
  trace.sequence({5, 6});
  trace.add({.step = 1, .decides = {3}});
  trace.end(1.0F, FinishReason::interrupted);
  const MetricResult result =
      run("decoding", {trace.finish()}, {.set_sizes = {}, .taus = {2.0, 3.0}});
  const ResultArray& means = result.array("means");
  EXPECT_DOUBLE_EQ(means.values[0], 5.0 / 3.0);
  EXPECT_DOUBLE_EQ(means.values[1], 2.0) << "the cut block doesn't count";
  EXPECT_DOUBLE_EQ(means.values[4], 0.5);
  EXPECT_THAT(means.terms, ElementsAre(3, 1, 5, 1, 1));
  EXPECT_THAT(result.array("settled").values, ElementsAre(1, 0, 1, 1, 0, 1, 0, 1));
  EXPECT_THAT(result.array("share_below_tau").values, ElementsAre(0.0, 1.0));
  EXPECT_THAT(result.left_out, ElementsAre(Pair("blocks cut off: not in steps per block", 1),
                                           Pair("sequences that did not end: no score", 1)));
}

std::string free_run(const std::string& path, double threshold, std::int64_t steps, float score) {
  SmallSetTrace trace(path, 2, 0, RecordLevel::trajectory,
                      R"({"version":"test","policy":"exact","strategy":"threshold","threshold":)" +
                          std::to_string(threshold) + "}");
  trace.sequence();
  for (std::int64_t s = 1; s <= steps; ++s) {
    trace.add({.step = s,
               .decides = steps == 1 ? std::vector<std::int64_t>{0, 1}
                                     : std::vector<std::int64_t>{s - 1}});
  }
  trace.end(score);
  return trace.finish();
}

TEST(DecodingCurves, PointsByThresholdMergeTracesOfTheSameOne) {
  const TempDir folder;
  const TraceGroup group({free_run(folder.file("a.h5"), 0.9, 2, 1.0F),
                          free_run(folder.file("b.h5"), 0.5, 1, 0.0F),
                          free_run(folder.file("c.h5"), 0.9, 2, 0.5F)});
  const std::vector<MetricResult> curves = decoding_curves(group);
  ASSERT_EQ(curves.size(), 1U);
  EXPECT_THAT(curves[0].array("accuracy").axes[0].index, ElementsAre(0.5, 0.9));
  EXPECT_THAT(curves[0].array("accuracy").values, ElementsAre(0.0, 0.75));
  EXPECT_THAT(curves[0].array("accuracy").terms, ElementsAre(1, 2));
  EXPECT_THAT(curves[0].array("tokens_per_step").values, ElementsAre(2.0, 1.0));
}

TEST(DecodingCurves, ReplaysAndUnknownStrategiesAreRefused) {
  const TempDir folder;
  SmallSetTrace replay(folder.file("a.h5"), 2, 0, RecordLevel::trajectory, kReplay);
  EXPECT_THAT(message_of([group = TraceGroup({replay.finish()})] { decoding_curves(group); }),
              HasSubstr("replays a.h5"));
  SmallSetTrace silent(folder.file("b.h5"), 2, 0, RecordLevel::trajectory,
                       R"({"version":"0.1.0"})");
  EXPECT_THAT(message_of([group = TraceGroup({silent.finish()})] { decoding_curves(group); }),
              HasSubstr("expected a text \"strategy\""));
}

}  // namespace
}  // namespace blockscope
