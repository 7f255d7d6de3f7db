// The viewer without its window, on the frozen trace: what is selected stays valid, what is shown
// is what the file holds.
#include "viewer/model/view_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_record/read/trace_reader.h"
#include "tests/viewer/view_model_test.h"
#include "viewer/model/heatmaps.h"
#include "viewer/model/selection_text.h"
#include "viewer/model/trajectory.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;

using testing::wait_for;
using testing::wait_until;

const std::string& kTrace = testing::kFrozenTrace;

class OpenTrace : public ::testing::Test {
 protected:
  OpenTrace() { model_.open(kTrace); }
  void SetUp() override {
    ASSERT_TRUE(wait_until(model_, [&] { return model_.overview() != nullptr; }));
  }
  ViewModel model_;
};

TEST_F(OpenTrace, SelectsSomethingThatExists) {
  ASSERT_NE(model_.block(), nullptr);
  ASSERT_NE(model_.step(), nullptr);
  EXPECT_TRUE(model_.problems().empty());
}

TEST_F(OpenTrace, StartsWhereThereIsTheMostToSee) {
  const TraceReader trace(kTrace);
  const PlaceToSee place = most_to_see(trace, list_blocks(trace));
  EXPECT_EQ(model_.selection().block, place.block);
  EXPECT_EQ(model_.selection().step, place.step);
  EXPECT_NE(model_.next_step(), nullptr);
}

TEST_F(OpenTrace, ASelectionFromTextDoesNotDependOnTheStart) {
  Selection elsewhere = model_.selection();
  elsewhere.block = model_.overview()->blocks.size() - 1;
  elsewhere.step = elsewhere.layer = elsewhere.head = 1;
  const Overview& overview = *model_.overview();
  const std::int64_t layer = overview.info.meta.layers.front();
  EXPECT_EQ(selection_from(parse_selection(fmt::format("layer={}", layer)), overview, elsewhere), Selection{});
  EXPECT_EQ(selection_from({}, overview, elsewhere), elsewhere);
}

TEST_F(OpenTrace, SelectionIsClampedToTheTrace) {
  Selection far;
  far.block = far.step = far.layer = far.head = std::size_t{1} << 40U;
  far.token = 1'000'000;
  model_.select(far);
  const TraceMeta& meta = model_.overview()->info.meta;
  EXPECT_EQ(model_.selection().block, model_.overview()->blocks.size() - 1);
  EXPECT_EQ(model_.selection().step, model_.block()->steps.size() - 1);
  EXPECT_EQ(model_.selection().layer, meta.layers.size() - 1);
  EXPECT_EQ(model_.selection().head, meta.heads.size() - 1);
  EXPECT_FALSE(model_.selection().token.has_value());
}

TEST_F(OpenTrace, StepsForwardThroughOneSequenceAndBackAgain) {
  const std::int64_t sequence = model_.block()->sequence;
  model_.move_step(-1'000'000);
  std::vector<std::int64_t> rows{model_.step()->row};
  for (;;) {
    model_.move_step(1);
    if (model_.step()->row == rows.back()) break;
    EXPECT_EQ(model_.block()->sequence, sequence);
    EXPECT_GT(model_.step()->row, rows.back());
    rows.push_back(model_.step()->row);
  }
  std::size_t denoising = 0;
  const TraceReader trace(kTrace);
  for (const std::int64_t row : trace.rows_of(sequence)) {
    denoising += static_cast<PassKind>(trace.steps(row, 1).kind[0]) == PassKind::denoise ? 1U : 0U;
  }
  EXPECT_EQ(rows.size(), denoising);
  model_.move_step(-1'000'000);
  EXPECT_EQ(model_.step()->row, rows.front());
  model_.select_row(rows.back());
  EXPECT_EQ(model_.step()->row, rows.back());
}

TEST_F(OpenTrace, TrajectoryEndsWithTheTextOfTheSequence) {
  const auto data = wait_for<Trajectory>(model_, [&] { return request_trajectory(model_); });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  const Trajectory& trajectory = *data.value;
  const TraceReader trace(kTrace);
  const std::int64_t sequence = model_.block()->sequence;
  // Every frame of the reader's own record, position by position.
  const DecodeRecord record = trace.decode_record(sequence);
  ASSERT_EQ(record.num_deltas(), trajectory.rows.size());
  const std::int64_t mask = trace.info().meta.mask_token_id;
  for (std::size_t t = 0; t < record.num_deltas(); ++t) {
    const Frame after = record.frame(t + 1);
    for (std::size_t p = 0; p < after.gen_length; ++p) {
      const std::int64_t token = after.tokens_of(0)[p];
      const auto shown =
          trajectory.shown(static_cast<std::int64_t>(p), static_cast<std::int32_t>(t));
      ASSERT_EQ(shown.has_value(), token != mask) << "step " << t << ", position " << p;
      if (!shown) continue;
      EXPECT_EQ(trajectory.cells[static_cast<std::size_t>(*shown)].text,
                readable_piece(trace.piece(token)));
    }
  }
}

TEST_F(OpenTrace, TokenMatrixHasTheDiagonalThatTheArraysGive) {
  const TraceMeta& meta = model_.overview()->info.meta;
  if (meta.level < RecordLevel::outputs) GTEST_SKIP() << "the frozen trace has no outputs";
  const auto data = wait_for<MatrixPayload>(model_, [&] {
    return request_token_matrix(model_, "t", Field::attention_internal, model_.next_step(), false);
  });
  ASSERT_EQ(data.state, DataState::ready) << data.message;
  const auto block = static_cast<std::size_t>(meta.block_length);
  const auto dim = static_cast<std::size_t>(meta.head_dim);
  const TraceReader trace(kTrace);
  const auto a = trace.read_floats_at(Field::attention_internal, model_.step()->row, 0);
  const auto b = trace.read_floats_at(Field::attention_internal, model_.next_step()->row, 0);
  for (std::size_t i = 0; i < block; ++i) {
    double dot = 0;
    double aa = 0;
    double bb = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double x = static_cast<double>(a[i * dim + d]);
      const double y = static_cast<double>(b[i * dim + d]);
      dot += x * y;
      aa += x * x;
      bb += y * y;
    }
    EXPECT_NEAR(static_cast<double>(data.value->matrix.values[i * block + i]),
                dot / std::sqrt(aa * bb), 1e-5);
  }
}

TEST(ViewModel, AFileThatIsNoTraceIsAProblemToAcknowledge) {
  ViewModel model;
  model.open(std::string(BLOCKSCOPE_SOURCE_DIR) + "/README.md");
  ASSERT_TRUE(wait_until(model, [&] { return !model.problems().empty(); }));
  EXPECT_THAT(model.problems().front(), HasSubstr("README.md"));
  EXPECT_EQ(model.overview(), nullptr);
  model.pop_problem();
  EXPECT_TRUE(model.problems().empty());
}

TEST(ViewModel, ClosingTheLastTraceLeavesNothingSelected) {
  ViewModel model;
  model.open(kTrace);
  ASSERT_TRUE(wait_until(model, [&] { return model.overview() != nullptr; }));
  model.close(0);
  EXPECT_EQ(model.overview(), nullptr);
  EXPECT_EQ(model.block(), nullptr);
  EXPECT_EQ(request_trajectory(model).state, DataState::loading);
}

TEST(ReadablePiece, EscapesWhatIsNotText) {
  EXPECT_EQ(readable_piece("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(readable_piece("\xE4\xBD\xA0"), "\xE4\xBD\xA0");
  EXPECT_EQ(readable_piece("a\xC3"), "a\\xc3");
  EXPECT_EQ(readable_piece("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(readable_piece("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(readable_piece("x\n\x01"), "x\u23CE\\x01");
}

}  // namespace
}  // namespace blockscope
