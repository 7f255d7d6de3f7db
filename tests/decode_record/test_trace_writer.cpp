// What a TraceWriter refuses, which files it leaves, and how it resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "decode_record/read/trace_reader.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using fixture::TempDir;
using testing::HasSubstr;

template <typename Expected, typename Work>
std::string message_of(Work work) {
  try {
    work();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

const TraceMeta kMeta = fixture::small_meta(RecordLevel::outputs);

TEST(TraceWriter, RefusesAnExistingTraceUnlessForced) {
  const TempDir dir;
  const std::string path = dir.file("x.h5");
  std::ofstream(path) << "precious";
  EXPECT_THAT(message_of<UsageError>([&] { TraceWriter(path, kMeta); }), HasSubstr("--force"));
  TraceWriterOptions options;
  options.force = true;
  {
    TraceWriter writer(path, kMeta, options);
    std::string kept;
    std::ifstream(path) >> kept;
    EXPECT_EQ(kept, "precious");  // replaced only when the new trace is whole
    writer.finish();
  }
  EXPECT_TRUE(TraceReader(path).info().complete);
}

TEST(TraceWriter, NamesAPlaceThatCannotBeWritten) {
  const TempDir dir;
  EXPECT_THAT(message_of<TraceError>([&] { TraceWriter(dir.file("no/x.h5"), kMeta); }),
              HasSubstr(dir.file("no")));
  EXPECT_THROW(TraceWriter(dir.path(), kMeta), UsageError);
}

TEST(TraceWriter, RefusesRowsThatContradictTheMeta) {
  const TempDir dir;
  TraceWriter writer(dir.file("x.h5"), kMeta);
  const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 2));
  const auto refuse = [&](const ArraySlice& slice) {
    TraceRow row;
    row.sequence = s;
    row.arrays = {slice};
    return message_of<UsageError>([&] { writer.append_row(std::move(row)); });
  };
  const Buffer small = make_buffer(std::vector<float>{1.0F});
  EXPECT_THAT(refuse({Field::attention_external, 0, small}), HasSubstr("/attention/external"));
  EXPECT_THAT(refuse({Field::hidden, 0, small}), HasSubstr("level outputs"));
  EXPECT_THAT(refuse({Field::step_pass, kAllLayers, small}), HasSubstr("itself"));
  EXPECT_THAT(refuse({Field::attention_external, 2, small}), HasSubstr("[0, 2)"));
  TraceRow row;
  row.sequence = s;
  row.step = 1;
  row.delta = make_transfer({8}, {1}, {0.5F});
  EXPECT_THROW(writer.append_row(row), FrameError);
  row.delta.reset();
  row.sequence = 1;
  EXPECT_THROW(writer.append_row(row), UsageError);
  EXPECT_THROW(writer.finish(), UsageError);  // the sequence has no end
  writer.end_sequence(s, {});
  writer.finish();
  EXPECT_EQ(TraceReader(dir.file("x.h5")).info().num_rows, 0);
}

TEST(TraceWriter, RefusesStepsThatNoReaderWouldTake) {
  const TempDir dir;
  TraceWriter writer(dir.file("x.h5"), kMeta);
  const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 2));
  const auto refuse = [&](TraceRow row) {
    return message_of<UsageError>([&] { writer.append_row(std::move(row)); });
  };
  const auto row_with = [&](PassKind kind, std::int64_t step) {
    TraceRow row = fixture::denoise_row(kMeta, s, 0, 0, 0);
    row.kind = kind;
    row.step = step;
    return row;
  };
  EXPECT_THAT(refuse(row_with(PassKind::denoise, 2)), HasSubstr("expected step 1, got 2"));
  EXPECT_THAT(refuse(row_with(PassKind::commit, 1)), HasSubstr("expected step 0, got 1"));
  for (const std::int64_t decided : {-1, 1, 9999}) {
    TraceRow row = row_with(PassKind::denoise, 1);
    row.delta->rows.front().transfer_step = {0, decided};
    EXPECT_THAT(refuse(std::move(row)), HasSubstr("transfer_step: expected 0 to 0"));
  }
  writer.append_row(row_with(PassKind::denoise, 1));
  writer.append_row(fixture::denoise_row(kMeta, s, 1, 0, 1));
  writer.append_row(fixture::denoise_row(kMeta, s, 2, 1, 0));
  writer.end_sequence(s, {});
  writer.finish();
  EXPECT_EQ(TraceReader(dir.file("x.h5")).info().num_rows, 3);
}

TEST(TraceWriter, LeavesAReadablePartialWithoutFinish) {
  const TempDir dir;
  {
    TraceWriter writer(dir.file("x.h5"), kMeta);
    const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 2));
    writer.append_row(fixture::denoise_row(kMeta, s, 0, 0, 0));
  }
  const TraceReader reader(dir.file("x.h5"));
  EXPECT_TRUE(reader.info().partial);
  EXPECT_FALSE(reader.info().complete);
  EXPECT_EQ(reader.info().num_rows, 1);
}

TEST(TraceWriter, ResumesBehindTheCommittedRowsAndMarksCutSequences) {
  const TempDir dir;
  const std::string path = dir.file("x.h5");
  {
    TraceWriter writer(path, kMeta);
    for (std::int64_t s = 0; s < 2; ++s) {
      writer.begin_sequence(fixture::sequence_start(s, 2));
      writer.append_row(fixture::denoise_row(kMeta, s, s, 0, 0));
    }
    writer.end_sequence(0, {FinishReason::stop, "done", 1.0F});
    writer.suspend();
    EXPECT_THROW(writer.append_row({}), UsageError);
  }
  ResumeState state;
  TraceWriter writer = TraceWriter::resume(path, kMeta, state);
  EXPECT_EQ(state.num_rows, 2);
  EXPECT_EQ(state.num_sequences, 2);
  EXPECT_EQ(state.next_pass, 2);
  ASSERT_EQ(state.finished.size(), 1U);
  EXPECT_EQ(state.finished[0], hash_prompt(fixture::sequence_start(0, 2).prompt));
  EXPECT_EQ(state.finished_names[0], "task-0");
  EXPECT_EQ(writer.begin_sequence(fixture::sequence_start(1, 2)), 2);
  writer.append_row(fixture::denoise_row(kMeta, 2, 2, 0, 0));
  writer.end_sequence(2, {FinishReason::length, "again", 0.0F});
  writer.finish();
  const TraceReader reader(path);
  EXPECT_EQ(reader.info().num_rows, 3);
  EXPECT_FALSE(reader.sequence(0).aborted);
  EXPECT_EQ(reader.sequence(0).text, "done");
  EXPECT_TRUE(reader.sequence(1).aborted);
  EXPECT_EQ(reader.sequence(2).text, "again");
  EXPECT_EQ(reader.frame(2, 1).tokens_of(0)[0], 2);
}

// A kill between the flush of the metadata and that of the superblock: the rows are in the file,
// but the superblock has a much earlier end of file. HDF5 refuses to read after that end.
TEST(TraceWriter, ResumesBehindASuperblockThatTellsAnEarlierEnd) {
  constexpr std::int64_t kRows = 400;
  const TempDir dir;
  const std::string cut = dir.file("cut.h5");
  std::string superblock(48, '\0');  // version 3 with 8-byte addresses, its checksum last
  {
    TraceWriter writer(dir.file("x.h5"), kMeta);
    std::ifstream(writer.partial_path(), std::ios::binary).read(superblock.data(), 48);
    const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, kRows / 2));
    for (std::int64_t i = 0; i < kRows; ++i) {
      writer.append_row(fixture::denoise_row(kMeta, s, i, i / 2, i % 2));
    }
    writer.commit();
    // While it is written: with the flags that a writer which is alive has set.
    std::filesystem::copy_file(writer.partial_path(), cut + ".partial");
    writer.suspend();
  }
  ASSERT_EQ(superblock.substr(1, 3), "HDF");
  const auto told_end = [](const std::string& bytes) {
    std::uint64_t end = 0;
    std::memcpy(&end, bytes.data() + 28, sizeof(end));
    return end;
  };
  ASSERT_LT(told_end(superblock) * 2, std::filesystem::file_size(cut + ".partial"));
  std::fstream(cut + ".partial", std::ios::in | std::ios::out | std::ios::binary)
      .write(superblock.data(), 48);

  ResumeState state;
  TraceWriter writer = TraceWriter::resume(cut, kMeta, state);
  EXPECT_EQ(state.num_rows, kRows);
  const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 2));
  writer.append_row(fixture::denoise_row(kMeta, s, kRows, 0, 0));
  writer.end_sequence(s, {FinishReason::length, "again", 0.0F});
  writer.finish();
  const TraceReader reader(cut);
  ASSERT_EQ(reader.info().num_rows, kRows + 1);
  for (const std::int64_t row : {std::int64_t{0}, kRows / 2, kRows - 1, kRows}) {
    EXPECT_EQ(reader.read_floats_at(Field::query, row, 1)[3],
              fixture::expected_value(Field::query, row, 1, 3));
  }
}

TEST(TraceWriter, RefusesToResumeWithOtherDatasets) {
  const TempDir dir;
  TraceWriter(dir.file("x.h5"), kMeta).suspend();
  TraceMeta other = kMeta;
  other.block_length = 8;
  ResumeState state;
  EXPECT_THAT(message_of<UsageError>([&] { TraceWriter::resume(dir.file("x.h5"), other, state); }),
              HasSubstr("block_length"));
  EXPECT_THROW(TraceWriter::resume(dir.file("y.h5"), kMeta, state), UsageError);
}

TEST(TraceWriter, KeepsTheQueueWithinItsBoundAndLosesNothing) {
  const TempDir dir;
  TraceWriterOptions options;
  options.queue_bytes = 20'000;  // less than two rows
  TraceWriter writer(dir.file("x.h5"), kMeta, options);
  const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 100));
  std::vector<std::weak_ptr<const void>> alive;
  std::size_t most = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    TraceRow row = fixture::denoise_row(kMeta, s, i, i / 2, i % 2);
    alive.push_back(row.arrays.front().data.owner);
    writer.append_row(std::move(row));
    most = std::max(most, static_cast<std::size_t>(std::ranges::count_if(
                              alive, [](const auto& owner) { return !owner.expired(); })));
  }
  EXPECT_LE(most, 6U);
  writer.end_sequence(s, {});
  writer.finish();
  EXPECT_EQ(TraceReader(dir.file("x.h5")).info().num_rows, 200);
}

TEST(TraceReader, SaysWhatIsWrongWithAFile) {
  const TempDir dir;
  const std::string path = dir.file("x.h5");
  EXPECT_THAT(message_of<TraceError>([&] { TraceReader reader(path); }), HasSubstr(path));
  std::ofstream(path) << "this is text";
  EXPECT_THROW(TraceReader reader(path), NotATrace);
  std::filesystem::remove(path);
  {
    TraceWriter writer(path, kMeta);
    const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 2));
    writer.append_row(fixture::denoise_row(kMeta, s, 0, 0, 0));
    writer.end_sequence(s, {});
    writer.finish();
  }
  const auto whole = std::filesystem::file_size(path);
  for (const auto part : {whole / 2, whole / 4, whole / 20, std::uintmax_t{100}}) {
    std::filesystem::resize_file(path, part);
    EXPECT_THROW(
        {
          const TraceReader reader(path);
          (void)reader.read_floats(Field::attention_external, 0, 1);
          (void)reader.decode_record(0);
        },
        TraceError)
        << part << " bytes";
  }
}

TEST(TraceMeta, HashesPromptsAsPublished) {
  // printf 'abc' | sha256sum, and of 8 zero bytes.
  EXPECT_EQ(to_hex(hash_prompt(std::vector<std::int64_t>{0})),
            "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
  EXPECT_EQ(to_hex(hash_prompt({})),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(TraceMeta, RefusesNumbersThatContradictEachOther) {
  TraceMeta meta = kMeta;
  meta.num_heads = 3;
  EXPECT_THROW(check_meta(meta), UsageError);
  meta = kMeta;
  meta.layers = {1, 1};
  EXPECT_THROW(check_meta(meta), UsageError);
  meta = kMeta;
  meta.heads = {4};
  EXPECT_THROW(check_meta(meta), UsageError);
  meta = kMeta;
  meta.softmax_scale = 0.0;
  EXPECT_THROW(check_meta(meta), UsageError);
  meta = kMeta;
  meta.draft_candidates = 1;  // without a draft
  EXPECT_THROW(check_meta(meta), UsageError);
  EXPECT_THROW(parse_record_level("everything"), UsageError);
}

}  // namespace
}  // namespace blockscope
