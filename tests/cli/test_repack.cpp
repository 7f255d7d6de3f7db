// repack: compressed, repaired and merged traces open with the same reader and hold the same
// values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "tests/cli/command.h"
#include "tests/cli/trace_files.h"

namespace blockscope::test {
namespace {

using fixture::TempDir;
using ::testing::HasSubstr;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// No two runs take the same time, to the nanosecond.
void of_another_run(TraceRow& row) { row.pass_time_ns += 1; }

/// Everything a reader can see of a sequence, in `b` at `sequence_b` against `a` at `sequence_a`.
void expect_same_sequence(const TraceReader& a, std::int64_t sequence_a, const TraceReader& b,
                          std::int64_t sequence_b) {
  const SequenceInfo info_a = a.sequence(sequence_a);
  const SequenceInfo info_b = b.sequence(sequence_b);
  EXPECT_EQ(info_a.name, info_b.name);
  EXPECT_EQ(info_a.prompt, info_b.prompt);
  EXPECT_EQ(info_a.prompt_hash, info_b.prompt_hash);
  EXPECT_EQ(info_a.answer, info_b.answer);
  EXPECT_EQ(info_a.text, info_b.text);
  const auto rows_a = a.rows_of(sequence_a);
  const auto rows_b = b.rows_of(sequence_b);
  ASSERT_EQ(rows_a.size(), rows_b.size());
  for (std::size_t i = 0; i < rows_a.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(a.frame_before(rows_a[i]), b.frame_before(rows_b[i]));
    EXPECT_EQ(a.delta(rows_a[i]), b.delta(rows_b[i]));
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(a.written(Field::attention_external, rows_a[i], layer),
                b.written(Field::attention_external, rows_b[i], layer));
      // A prefix is gathered from all rows before: not at each of them.
      if (i % 20 == 0 || i + 1 == rows_a.size()) {
        const auto kept = b.prefix(Field::prefix_key, rows_b[i], layer);
        EXPECT_EQ(a.prefix(Field::prefix_key, rows_a[i], layer).positions, kept.positions);
        EXPECT_EQ(a.prefix(Field::prefix_key, rows_a[i], layer).values, kept.values);
      }
      if (!a.written(Field::attention_external, rows_a[i], layer)) continue;
      EXPECT_EQ(a.read_floats_at(Field::attention_external, rows_a[i], layer),
                b.read_floats_at(Field::attention_external, rows_b[i], layer));
      EXPECT_EQ(a.read_ints_at(Field::set_topk, rows_a[i], layer),
                b.read_ints_at(Field::set_topk, rows_b[i], layer));
    }
  }
}

TEST(Repack, ATraceOfSchema1IsWrittenUnderTodaysNames) {
  const TempDir folder;
  const std::string frozen = BLOCKSCOPE_SOURCE_DIR "/tests/data/trace_schema_1.h5";
  const auto result = run_blockscope({"repack", frozen, "-o", folder.file("b.h5")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const TraceReader old(frozen);
  const TraceReader now(folder.file("b.h5"));
  EXPECT_EQ(old.info().format_version, 1);
  EXPECT_EQ(now.info().format_version, 2);
  EXPECT_EQ(old.steps(0, 26).changed, now.steps(0, 26).changed);
  for (std::int64_t i = 0; i < 2; ++i) expect_same_sequence(old, i, now, i);
}

TEST(Repack, ACompressedTraceHoldsTheSameValuesInFewerBytes) {
  const TempDir folder;
  RunShape shape;
  shape.blocks = 40;
  write_run(folder.file("a.h5"), shape);
  const std::string before = bytes_of(folder.file("a.h5"));
  const auto result = run_blockscope(
      {"repack", folder.file("a.h5"), "-o", folder.file("b.h5"), "--compress", "deflate"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(run_blockscope({"diff", folder.file("a.h5"), folder.file("b.h5")}).exit_code, 0);
  EXPECT_LT(bytes_of(folder.file("b.h5")).size(), before.size());
  EXPECT_EQ(bytes_of(folder.file("a.h5")), before) << "the input is never changed";
  EXPECT_THAT(run_blockscope({"info", folder.file("b.h5"), "--datasets"}).out,
              HasSubstr("deflated"));
  const TraceReader a(folder.file("a.h5"));
  const TraceReader b(folder.file("b.h5"));
  EXPECT_TRUE(b.info().complete);
  for (std::int64_t s = 0; s < 2; ++s) expect_same_sequence(a, s, b, s);
  EXPECT_EQ(b.piece(7), "piece7");
  EXPECT_THAT(b.info().meta.run_json, HasSubstr("repacked"));
  EXPECT_THAT(b.info().meta.run_json, ::testing::Not(HasSubstr("lost")));
}

TEST(Repack, AnUnfinishedTraceIsRefusedAndRepairedOnRequest) {
  const TempDir folder;
  RunShape shape;
  shape.finish = false;
  write_run(folder.file("a.h5"), shape);
  const std::string partial = folder.file("a.h5.partial");
  const std::string before = bytes_of(partial);
  const auto refused = run_blockscope({"repack", partial, "-o", folder.file("b.h5")});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--repair"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("b.h5")));

  const auto result = run_blockscope({"repack", partial, "-o", folder.file("b.h5"), "--repair"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "nothing is lost";
  EXPECT_THAT(result.out, HasSubstr("1 sequence has no end and is marked aborted"));
  const TraceReader a(partial);
  const TraceReader b(folder.file("b.h5"));
  EXPECT_EQ(b.info().num_rows, a.info().num_rows);
  EXPECT_FALSE(b.info().complete) << "the run did not end by itself";
  EXPECT_FALSE(b.info().partial);
  EXPECT_FALSE(b.sequence(0).aborted);
  EXPECT_TRUE(b.sequence(1).aborted);
  for (std::int64_t s = 0; s < 2; ++s) expect_same_sequence(a, s, b, s);
  EXPECT_EQ(bytes_of(partial), before);
}

TEST(Repack, MergedRanksKeepEverySequenceWhole) {
  const TempDir folder;
  RunShape first;
  first.blocks = 70;  // beyond one keyframe interval
  RunShape second;
  second.sequences = 3;
  second.change = of_another_run;
  write_run(folder.file("run.r0000.h5"), first);
  write_run(folder.file("run.r0001.h5"), second);
  const std::string inputs[] = {folder.file("run.r0000.h5"), folder.file("run.r0001.h5")};
  const std::string output = folder.file("run.h5");
  EXPECT_EQ(run_blockscope({"repack", inputs[0], inputs[1], "-o", output}).exit_code, 2);
  for (const std::string mode : {"--compress=none", "--copy", "--compress=deflate"}) {
    SCOPED_TRACE(mode);
    const auto result =
        run_blockscope({"repack", inputs[0], inputs[1], "--merge", "--force", "-o", output, mode});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const TraceReader a(inputs[0]);
    const TraceReader b(inputs[1]);
    const TraceReader merged(output);
    EXPECT_EQ(merged.info().num_sequences, 5);
    EXPECT_EQ(merged.info().num_rows, a.info().num_rows + b.info().num_rows);
    for (std::int64_t s = 0; s < 2; ++s) expect_same_sequence(a, s, merged, s);
    for (std::int64_t s = 0; s < 3; ++s) expect_same_sequence(b, s, merged, 2 + s);
    // Passes of different ranks are different passes.
    const auto steps = merged.steps(0, merged.info().num_rows);
    const std::set<std::int64_t> passes(steps.pass.begin(), steps.pass.end());
    EXPECT_EQ(passes.size(), steps.pass.size());
  }
}

/// Two ranks' traces of level full in `folder`, merged there into run.h5.
void write_merged(const TempDir& folder, const std::vector<std::string>& flags = {}) {
  RunShape shape;
  shape.blocks = 40;
  write_run(folder.file("run.r0000.h5"), shape);
  shape.sequences = 3;
  shape.change = of_another_run;
  write_run(folder.file("run.r0001.h5"), shape);
  std::vector<std::string> arguments = {
      "repack", folder.file("run.r0000.h5"), folder.file("run.r0001.h5"), "--merge",
      "-o",     folder.file("run.h5")};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const auto result = run_blockscope(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
}

TEST(Repack, AMergedTraceRefersToTheArraysOfItsPartsAndMovesWithThem) {
  const TempDir folder;
  write_merged(folder);
  const TempDir other;
  write_merged(other, {"--copy"});
  EXPECT_LT(bytes_of(folder.file("run.h5")).size(), bytes_of(other.file("run.h5")).size() / 2);
  EXPECT_EQ(run_blockscope({"diff", folder.file("run.h5"), other.file("run.h5")}).exit_code, 0);

  const std::string moved = other.file("moved");
  std::filesystem::create_directory(moved);
  for (const char* name : {"run.h5", "run.r0000.h5", "run.r0001.h5"}) {
    std::filesystem::rename(folder.file(name), moved + "/" + name);
  }
  EXPECT_EQ(run_blockscope({"diff", moved + "/run.h5", other.file("run.h5")}).exit_code, 0);

  // One file that needs no other, made of the merged one.
  const auto copied = run_blockscope({"repack", moved + "/run.h5", "-o", folder.file("whole.h5")});
  ASSERT_EQ(copied.exit_code, 0) << copied.err;
  std::filesystem::remove_all(moved);
  EXPECT_EQ(run_blockscope({"diff", folder.file("whole.h5"), other.file("run.h5")}).exit_code, 0);
}

TEST(Repack, AMergedTraceWhosePartIsMissingOrChangedIsRefused) {
  const TempDir folder;
  write_merged(folder);
  const std::string merged = folder.file("run.h5");
  const std::string part = folder.file("run.r0001.h5");
  const auto refused = [&](const std::string& word) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"info", merged, "--datasets"},
                                               {"diff", merged, merged},
                                               {"repack", merged, "-o", folder.file("never.h5")}}) {
      const auto result = run_blockscope(command);
      EXPECT_EQ(result.exit_code, 1) << command[0];
      EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
      EXPECT_THAT(result.err, HasSubstr("run.r0001.h5"));
      EXPECT_THAT(result.err, HasSubstr(word));
      EXPECT_THAT(result.err, HasSubstr("HINT"));
      EXPECT_FALSE(std::filesystem::exists(folder.file("never.h5")));
    }
    const TraceReader reader(merged);
    EXPECT_THROW(reader.read_floats_at(Field::attention_external, 0, 0), TraceError);
  };
  std::filesystem::rename(part, folder.file("away.h5"));
  refused("no such file");
  std::ofstream(part) << "not a trace";
  refused("open the file");
  std::filesystem::remove(part);
  RunShape other;
  other.sequences = 1;
  write_run(part, other);
  refused("rows now");
  std::filesystem::remove(part);
  std::filesystem::copy_file(merged, part);  // refers to itself
  refused("a reference to");
  std::filesystem::remove(part);
  std::filesystem::rename(folder.file("away.h5"), part);
  EXPECT_EQ(run_blockscope({"info", merged, "--datasets"}).exit_code, 0);
}

TEST(Repack, MergingAMergedTraceCopies) {
  const TempDir folder;
  write_merged(folder);
  RunShape shape;
  shape.blocks = 40;
  shape.change = [](TraceRow& row) { row.pass_time_ns += 2; };
  write_run(folder.file("more.h5"), shape);
  const auto result = run_blockscope({"repack", folder.file("run.h5"), folder.file("more.h5"),
                                      "--merge", "-o", folder.file("all.h5")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("--copy")));
  for (const char* name : {"run.h5", "run.r0000.h5", "run.r0001.h5"}) {
    std::filesystem::rename(folder.file(name), folder.file(name) + ".away");
  }
  const TraceReader all(folder.file("all.h5"));
  const TraceReader more(folder.file("more.h5"));
  EXPECT_EQ(all.info().num_sequences, 7);
  for (std::int64_t s = 0; s < 2; ++s) expect_same_sequence(more, s, all, 5 + s);
}

TEST(Repack, ARunIsMergedOnceUnderWhateverFormItIsGiven) {
  const TempDir folder;
  write_merged(folder);
  const std::string part = folder.file("run.r0000.h5");
  const std::string merged = folder.file("run.h5");
  const std::string packed = folder.file("packed.h5");
  const std::string copied = folder.file("copied.h5");
  const std::string other = folder.file("run.r0001.h5");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"repack", part, "-o", packed, "--compress", "deflate"},
           {"repack", part, other, "--merge", "--copy", "-o", copied},
           {"repack", packed, other, "--merge", "-o", folder.file("again.h5")}}) {
    ASSERT_EQ(run_blockscope(command).exit_code, 0) << "the same prompts, decoded again";
  }
  for (const auto& [first, second] : std::vector<std::pair<std::string, std::string>>{
           {part, part}, {part, packed}, {merged, copied}, {merged, part}, {packed, copied}}) {
    SCOPED_TRACE(first + " " + second);
    const auto result =
        run_blockscope({"repack", first, second, "--merge", "-o", folder.file("never.h5")});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
    EXPECT_THAT(result.err, HasSubstr("would count twice"));
    EXPECT_THAT(result.err, HasSubstr(first));
    EXPECT_THAT(result.err, HasSubstr(second));
    EXPECT_FALSE(std::filesystem::exists(folder.file("never.h5")));
  }
}

TEST(Repack, TracesOfDifferentModelsAreNotMerged) {
  const TempDir folder;
  RunShape other;
  other.model_json = R"({"requested":"","name":"other"})";
  write_run(folder.file("a.h5"));
  write_run(folder.file("b.h5"), other);
  const auto result = run_blockscope(
      {"repack", folder.file("a.h5"), folder.file("b.h5"), "--merge", "-o", folder.file("c.h5")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(is_one_error_line(result.err)) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder.file("c.h5")));
}

TEST(Repack, NeverReplacesAnInputNorAnExistingFileUnasked) {
  const TempDir folder;
  write_run(folder.file("a.h5"));
  const std::string before = bytes_of(folder.file("a.h5"));
  const auto self =
      run_blockscope({"repack", folder.file("a.h5"), "-o", folder.file("a.h5"), "--force"});
  EXPECT_EQ(self.exit_code, 2);
  EXPECT_THAT(self.err, HasSubstr("the command reads this file"));
  std::ofstream(folder.file("b.h5")) << "mine";
  const auto exists = run_blockscope({"repack", folder.file("a.h5"), "-o", folder.file("b.h5")});
  EXPECT_EQ(exists.exit_code, 2);
  EXPECT_EQ(bytes_of(folder.file("b.h5")), "mine");
  EXPECT_EQ(bytes_of(folder.file("a.h5")), before);
  const auto nowhere =
      run_blockscope({"repack", folder.file("a.h5"), "-o", folder.file("no/b.h5")});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_TRUE(is_one_error_line(nowhere.err)) << nowhere.err;
}

}  // namespace
}  // namespace blockscope::test
