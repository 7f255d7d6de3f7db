// Readers of a trace that is being written. Each shows the rows committed when it read, however
// many there are, and whatever is written or renamed afterwards.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "decode_record/read/trace_inventory.h"
#include "decode_record/read/trace_reader.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

constexpr std::int64_t kLiveBlocks = 2000;

class LiveTrace : public ::testing::Test {
 protected:
  /// Rows up to `count`, all committed.
  void write_rows(std::int64_t count) {
    for (; rows_ < count; ++rows_) {
      writer_.append_row(fixture::denoise_row(meta_, 0, rows_, rows_ / 2, rows_ % 2));
    }
    writer_.commit();
  }

  void expect_rows(const TraceReader& reader, std::int64_t count) {
    ASSERT_EQ(reader.info().num_rows, count);
    const StepColumns steps = reader.steps(0, count);
    for (std::int64_t row = 0; row < count; ++row) {
      ASSERT_EQ(steps.pass[static_cast<std::size_t>(row)], row);
    }
    for (const std::int64_t row : {std::int64_t{0}, count / 2, count - 1}) {
      const auto values = reader.read_floats_at(Field::attention_external, row, 1);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], fixture::expected_value(Field::attention_external, row, 1,
                                                     static_cast<std::int64_t>(i)));
      }
    }
    ASSERT_EQ(reader.delta(count - 1).rows.front().transfer_index.size(), 2U);
  }

  fixture::TempDir folder_;
  std::string path_ = folder_.file("live.h5");
  TraceMeta meta_ = fixture::small_meta(RecordLevel::outputs);
  TraceWriter writer_{path_, meta_};
  std::int64_t rows_ = 0;
};

TEST_F(LiveTrace, ReadersOfOneFileDoNotHoldEachOtherBack) {
  writer_.begin_sequence(fixture::sequence_start(0, kLiveBlocks));
  write_rows(4);
  TraceReader first(path_);
  expect_rows(first, 4);
  write_rows(1500);  // more than a chunk of a column
  TraceReader second(path_);
  expect_rows(second, 1500);
  for (const DatasetInfo& dataset : list_datasets(path_)) {
    if (dataset.path != "/steps/kind") continue;
    EXPECT_EQ(dataset.shape.front(), 1500);
  }
  EXPECT_TRUE(first.refresh());
  expect_rows(first, 1500);
  write_rows(3000);
  EXPECT_TRUE(second.refresh());
  expect_rows(second, 3000);
  expect_rows(first, 1500);
  EXPECT_TRUE(first.refresh());
  expect_rows(first, 3000);
}

TEST_F(LiveTrace, ASequenceEndsForAReaderWhenItLooksAgain) {
  writer_.begin_sequence(fixture::sequence_start(0, kLiveBlocks));
  write_rows(2);
  TraceReader reader(path_);
  writer_.end_sequence(0, {FinishReason::length, std::string(20000, 'x'), 1.0F});
  writer_.commit();
  EXPECT_EQ(reader.sequence(0).finish_reason, FinishReason::unfinished);
  EXPECT_EQ(reader.sequence(0).text, "");
  reader.refresh();
  EXPECT_EQ(reader.sequence(0).finish_reason, FinishReason::length);
  EXPECT_EQ(reader.sequence(0).text, std::string(20000, 'x'));
}

TEST_F(LiveTrace, ATraceIsFoundUnderItsFirstNameAfterItsEnd) {
  writer_.begin_sequence(fixture::sequence_start(0, kLiveBlocks));
  write_rows(2);
  TraceReader reader(path_);
  const std::string first_name = reader.info().path;
  EXPECT_EQ(first_name, path_ + ".partial");
  writer_.end_sequence(0, {FinishReason::length, "text", 1.0F});
  writer_.finish();
  EXPECT_FALSE(list_datasets(first_name).empty());
  EXPECT_EQ(TraceReader(first_name).info().path, path_);
  EXPECT_TRUE(reader.refresh());
  EXPECT_TRUE(reader.info().complete);
  expect_rows(reader, 2);
}

TEST_F(LiveTrace, TheEndAloneIsAChange) {
  writer_.begin_sequence(fixture::sequence_start(0, kLiveBlocks));
  write_rows(2);
  writer_.end_sequence(0, {FinishReason::length, "text", 1.0F});
  writer_.commit();
  const std::string link = folder_.file("link.h5");  // a name that the writer doesn't change
  std::filesystem::create_hard_link(path_ + ".partial", link);
  TraceReader reader(link);
  EXPECT_FALSE(reader.info().complete);
  EXPECT_FALSE(reader.refresh());
  writer_.finish();
  EXPECT_TRUE(reader.refresh());
  EXPECT_TRUE(reader.info().complete);
}

}  // namespace
}  // namespace blockscope
