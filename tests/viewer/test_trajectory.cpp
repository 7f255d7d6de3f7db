// Tokens that no denoising step decides: those of a prefill or a commit. Runs of end-of-text
// tokens.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/frames/frame_delta.h"
#include "decode_record/read/trace_reader.h"
#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"
#include "tests/viewer/end_of_text_trace.h"
#include "viewer/model/trajectory.h"

namespace blockscope::testing {
namespace {

struct Told {
  PassKind kind;
  std::vector<std::int64_t> positions, tokens;
};

/// As a run with a draft, or with sub-blocks, has them.
const std::vector<Told> kRows = {
    {PassKind::prefill, {0}, {5}}, {PassKind::denoise, {1, 2}, {6, 7}},
    {PassKind::commit, {3}, {8}},  {PassKind::denoise, {}, {}},
    {PassKind::commit, {4}, {5}},  {PassKind::denoise, {5}, {9}},
    {PassKind::commit, {}, {}},
};

void write_trace(const std::string& path) {
  TraceWriter writer(path, eleven_tokens());
  SequenceStart start;
  start.prompt = {1, 2};
  start.gen_length = 7;
  const std::int64_t sequence = writer.begin_sequence(std::move(start));
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    TraceRow row;
    row.sequence = sequence;
    row.pass = static_cast<std::int64_t>(i);
    row.kind = kRows[i].kind;
    row.block = row.kind == PassKind::prefill ? -1 : static_cast<std::int64_t>(i) / 2;
    row.step = row.kind == PassKind::denoise ? 1 : 0;
    if (!kRows[i].positions.empty()) {
      row.delta = make_transfer(kRows[i].positions, kRows[i].tokens,
                                std::vector<float>(kRows[i].positions.size(), 0.5F));
    }
    writer.append_row(std::move(row));
  }
  writer.end_sequence(sequence, {});
  writer.finish();
}

TEST(Trajectory, ShowsWhatPrefillsAndCommitsTellAfterTheStepBeforeThem) {
  const fixture::TempDir folder;
  write_trace(folder.file("told.h5"));
  const TraceReader trace(folder.file("told.h5"));
  JobControl control;
  const auto trajectory = read_trajectory(trace, 0, control);
  const DecodeRecord record = trace.decode_record(0);
  ASSERT_EQ(trajectory->rows.size(), 3U);
  ASSERT_EQ(trajectory->cells.size(), 6U);
  for (std::size_t t = 0; t < 3; ++t) {
    const Frame after = record.frame(t + 1);
    for (std::int64_t p = 0; p < 7; ++p) {
      const std::int64_t token = after.tokens_of(0)[static_cast<std::size_t>(p)];
      EXPECT_EQ(trajectory->shown(p, static_cast<std::int32_t>(t)).has_value(), token != 10)
          << "step " << t << ", position " << p;
    }
  }
  EXPECT_FALSE(trajectory->shown(3, -1));
}

TEST(Trajectory, ShowsWhatAnEditReplacedAndWhatADeletionMoved) {
  const fixture::TempDir folder;
  const TraceMeta meta = fixture::small_meta(RecordLevel::trajectory, ArrayType::bf16);
  {
    TraceWriter writer(folder.file("edits.h5"), meta);
    writer.begin_sequence(fixture::sequence_start(0, 1));
    const auto step = [&](std::int64_t index, FrameDelta delta) {
      TraceRow row = fixture::denoise_row(meta, 0, index, 0, index);
      row.delta = std::move(delta);
      writer.append_row(std::move(row));
    };
    step(0, make_transfer({0, 1, 2}, {1, 2, 3}, {.5F, .5F, .5F}));
    step(1, make_transfer({1}, {4}, {.9F}));
    FrameDelta deletion;
    SequenceDelta& row = deletion.rows.front();
    row.insert_index = {4};
    row.insert_src_index = {0};
    row.decoded_tokens = {meta.mask_token_id};
    row.confidence = {kUntouchedConfidence};
    row.insert_step = {kUndecodedStep};
    row.delete_index = {0};
    step(2, deletion);
    writer.end_sequence(0, {FinishReason::length, "", 0.0F});
    writer.finish();
  }
  const TraceReader trace(folder.file("edits.h5"));
  JobControl control;
  const auto trajectory = read_trajectory(trace, 0, control);
  const auto shown = [&](std::int64_t position, std::int32_t t) -> const Trajectory::Cell* {
    const auto index = trajectory->shown(position, t);
    return index ? &trajectory->cells[static_cast<std::size_t>(*index)] : nullptr;
  };
  ASSERT_NE(shown(1, 1), nullptr);
  EXPECT_EQ(shown(1, 1)->kind, ChangeKind::edited);
  EXPECT_EQ(shown(1, 1)->before, shown(1, 0)->text);
  EXPECT_EQ(shown(1, 1)->confidence, .9F);
  ASSERT_NE(shown(0, 2), nullptr);
  EXPECT_EQ(shown(0, 2)->kind, ChangeKind::moved);
  EXPECT_EQ(shown(0, 2)->text, shown(1, 1)->text);
  EXPECT_EQ(shown(2, 2), nullptr);  // position 2's token moved to 1
  EXPECT_EQ(trajectory->rows[2].deleted, 1);
  EXPECT_EQ(trajectory->rows[2].inserted, 0);
  const std::string csv = trajectory_table(*trajectory).text();
  EXPECT_NE(csv.find(",edited,"), std::string::npos) << csv;
}

std::shared_ptr<const Trajectory> trajectory_of_tokens(const std::vector<std::int64_t>& tokens) {
  const fixture::TempDir folder;
  const TraceReader trace(end_of_text_trace(folder.file("t.h5"), tokens));
  JobControl control;
  return read_trajectory(trace, 0, control);
}

TEST(Trajectory, ARunOfEndOfTextTokensIsOneColumnInEachBlock) {
  const auto trajectory = trajectory_of_tokens({1, 9, 2, 9, 9, 9, 9, 9, 9, 9, 3, 4});
  using Column = std::array<std::int64_t, 3>;
  std::vector<Column> columns;
  for (const Trajectory::Column& column : trajectory->columns) {
    columns.push_back({column.position, column.count, column.runs_before});
  }
  // The end-of-text token at 3 is alone in its block.
  EXPECT_EQ(columns, (std::vector<Column>{{0, 1, 0},
                                          {1, 1, 0},
                                          {2, 1, 0},
                                          {3, 1, 0},
                                          {4, 4, 0},
                                          {8, 2, 1},
                                          {10, 1, 2},
                                          {11, 1, 2}}));
  EXPECT_EQ(trajectory->column_of(0).position, 0);
  EXPECT_EQ(trajectory->column_of(7).position, 4);
  EXPECT_EQ(trajectory->column_of(11).position, 11);
  EXPECT_EQ(trajectory->decided(trajectory->column_of(4), 5), 2);
  EXPECT_EQ(trajectory->decided(trajectory->column_of(4), 3), 0);
}

TEST(Trajectory, TheTextHasOneMarkForARun) {
  const auto trajectory = trajectory_of_tokens({1, 9, 2, 9, 9, 9});
  EXPECT_EQ(trajectory->text_after(5), "b</s>c\u27E8end of text \u00D73\u27E9");
  EXPECT_EQ(trajectory->text_after(3), "b</s>c</s>\u2591\u2591");
}

}  // namespace
}  // namespace blockscope::testing
