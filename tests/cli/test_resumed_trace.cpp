// What info, export and diff make of a trace that was cut and resumed: the sequence that a kill cut
// is in it twice, and counts once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/cli/trace_files.h"

namespace blockscope::test {
namespace {

using fixture::TempDir;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kTasks = 3;
constexpr std::int64_t kBlocks = 40;  // 80 denoising rows: beyond one keyframe interval

/// Rows of a task, up to `rows`; their values follow from the task and the row, not from where the
/// row is in the file.
void append_task(TraceWriter& writer, const TraceMeta& meta, std::int64_t task, std::int64_t rows,
                 std::int64_t other_token = -1) {
  const std::int64_t index = writer.begin_sequence(fixture::sequence_start(task, kBlocks));
  std::int64_t done = 0;
  const auto append = [&](TraceRow row) {
    row.sequence = index;
    row.pass = task * 1000 + done;
    if (done++ < rows) writer.append_row(std::move(row));
  };
  TraceRow prefill;
  prefill.kind = PassKind::prefill;
  fixture::add_prefix(prefill, meta, 0, 4 + task);
  append(std::move(prefill));
  for (std::int64_t step = 0; step < 2 * kBlocks; ++step) {
    TraceRow row = fixture::denoise_row(meta, task, task * 1000 + done, step / 2, step % 2);
    if (step == other_token) row.delta->rows[0].decoded_tokens[1] = 95;
    append(std::move(row));
  }
  if (done <= rows) {
    writer.end_sequence(index, {FinishReason::length, "text " + std::to_string(task), 1.0F});
  }
}

void write_whole(const std::string& path, std::int64_t other_token = -1) {
  const TraceMeta meta = fixture::small_meta();
  TraceWriter writer(path, meta);
  for (std::int64_t task = 0; task < kTasks; ++task) {
    append_task(writer, meta, task, 1000, task == 1 ? other_token : -1);
  }
  writer.finish();
}

/// Task 1 is cut after 70 rows, then decoded again after task 0 and itself.
void write_resumed(const std::string& path) {
  const TraceMeta meta = fixture::small_meta();
  {
    TraceWriter writer(path, meta);
    append_task(writer, meta, 0, 1000);
    append_task(writer, meta, 1, 70);
    writer.suspend();
  }
  ResumeState state;
  TraceWriter writer = TraceWriter::resume(path, meta, state);
  ASSERT_EQ(state.num_rows, 81 + 70);
  for (std::int64_t task = 1; task < kTasks; ++task) append_task(writer, meta, task, 1000);
  writer.finish();
}

class ResumedTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    write_whole(whole_);
    write_resumed(resumed_);
  }
  CommandResult run(std::vector<std::string> words) { return run_blockscope(words); }

  TempDir folder_;
  std::string whole_ = folder_.file("whole.h5");
  std::string resumed_ = folder_.file("resumed.h5");
};

TEST_F(ResumedTrace, InfoCountsTheAbortedSequenceApart) {
  const auto result = run({"info", resumed_, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json info = json::parse(result.out);
  EXPECT_EQ(info["sequences"], kTasks);
  EXPECT_EQ(info["rows"]["committed"], kTasks * 81);
  EXPECT_EQ(info["rows"]["denoise"], kTasks * 80);
  EXPECT_EQ(info["blocks"], kTasks * kBlocks);
  EXPECT_EQ(info["tokens_decided"], kTasks * 160);
  EXPECT_EQ(info["aborted"], json({{"sequences", 1}, {"rows", 70}, {"tokens", 69 * 2}}));
  EXPECT_THAT(run({"info", resumed_}).out, HasSubstr("1 aborted sequence (70 rows, 138 tokens)"));
  const json whole = json::parse(run({"info", whole_, "--json"}).out);
  for (const char* key : {"sequences", "rows", "blocks", "tokens_decided", "score", "layers"}) {
    EXPECT_EQ(info[key], whole[key]) << key;
  }
  EXPECT_THAT(run({"info", whole_}).out, Not(HasSubstr("aborted")));
}

TEST_F(ResumedTrace, DiffCallsItEqualToAnUninterruptedOne) {
  const auto plain = run({"diff", resumed_, whole_});
  EXPECT_EQ(plain.exit_code, 1);
  EXPECT_THAT(plain.out, HasSubstr("--ignore-aborted"));
  for (const auto& [a, b] : {std::pair(resumed_, whole_), std::pair(whole_, resumed_)}) {
    const auto result = run({"diff", a, b, "--ignore-aborted", "--all"});
    EXPECT_EQ(result.exit_code, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("the traces are equal"));
    EXPECT_THAT(result.out, HasSubstr("/attention/external"));
    EXPECT_THAT(result.out, HasSubstr("/frames/keyframe_token"));
  }
}

TEST_F(ResumedTrace, DiffFindsOneTokenAndASequenceThatIsMissing) {
  write_whole(folder_.file("other.h5"), 3);
  const auto token = run({"diff", resumed_, folder_.file("other.h5"), "--ignore-aborted"});
  EXPECT_EQ(token.exit_code, 1);
  EXPECT_THAT(token.out, HasSubstr("/frames/token"));
  // The task's second life begins after 162 elements of task 0 and 138 of its first one.
  EXPECT_THAT(token.out, HasSubstr("1 of 480 differ, first at [305]"));
  RunShape shape;
  shape.sequences = 2;
  write_run(folder_.file("short.h5"), shape);
  const auto missing = run({"diff", resumed_, folder_.file("short.h5"), "--ignore-aborted"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.out, HasSubstr("is only in"));
  const auto more = run({"diff", folder_.file("short.h5"), resumed_, "--ignore-aborted"});
  EXPECT_EQ(more.exit_code, 1);
  EXPECT_THAT(more.out, HasSubstr("is only in " + resumed_));
}

TEST_F(ResumedTrace, ExportMarksOrDropsIt) {
  const auto csv = run({"export", resumed_});
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  EXPECT_THAT(csv.out, HasSubstr(",decoded_step,aborted\n"));
  std::int64_t aborted = 0;
  std::int64_t lines = 0;
  std::istringstream text(csv.out);
  for (std::string line; std::getline(text, line); ++lines) {
    if (line.starts_with("1,") && line.ends_with(",1")) ++aborted;
    if (!line.starts_with("1,") && lines > 0) {
      EXPECT_TRUE(line.ends_with(",0")) << line;
    }
  }
  EXPECT_EQ(aborted, 138);
  EXPECT_EQ(lines, 1 + 138 + 480);
  const json rows = json::parse(run({"export", resumed_, "--format", "json"}).out);
  ASSERT_EQ(rows["sequences"].size(), 4u);
  EXPECT_EQ(rows["sequences"][1]["aborted"], true);
  for (const char* format : {"frames", "step_map"}) {
    const auto dropped = run({"export", resumed_, "--format", format});
    EXPECT_EQ(json::parse(dropped.out)["sequences"].size(), 3u);
    EXPECT_THAT(dropped.err, HasSubstr("1 aborted sequence left out"));
    const auto kept = run({"export", resumed_, "--format", format, "--aborted", "keep"});
    EXPECT_EQ(json::parse(kept.out)["sequences"].size(), 4u);
    EXPECT_EQ(kept.err, "");
  }
  const auto less = run({"export", resumed_, "--aborted", "drop"});
  EXPECT_EQ(std::ranges::count(less.out, '\n'), 1 + 480);
}

TEST(MergedTraces, OfAnotherLevelAreRefusedInWordsOfAMerge) {
  const TempDir folder;
  RunShape shape;
  write_run(folder.file("a.h5"), shape);
  shape.level = RecordLevel::summary;
  write_run(folder.file("b.h5"), shape);
  const auto result = run_blockscope(
      {"repack", folder.file("a.h5"), folder.file("b.h5"), "--merge", "-o", folder.file("c.h5")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("b.h5: level: expected full, as in"));
  EXPECT_THAT(result.err, Not(HasSubstr("resume")));
}

}  // namespace
}  // namespace blockscope::test
