// Values read without HDF5 are those that HDF5 reads, or an error that says what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "decode_record/read/trace_reader.h"
#include "decode_record/repack/repack.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using fixture::TempDir;
using ::testing::HasSubstr;

/// Two blocks of two denoising steps of one sequence, every dataset; row 2 without arrays.
void write_trace(const std::string& path, ArrayType type, std::int64_t rank = 0) {
  TraceMeta meta = fixture::small_meta(RecordLevel::full, type);
  TraceWriter writer(path, meta);
  const SequenceStart start = fixture::sequence_start(rank, 2);
  writer.begin_sequence(start);
  for (std::int64_t number = 0; number < 4; ++number) {
    TraceRow row = fixture::denoise_row(meta, rank, number, number / 2, number % 2);
    row.sequence = 0;
    if (number == 2) {
      row.recorded = false;
      row.arrays.clear();
    }
    writer.append_row(std::move(row));
  }
  writer.end_sequence(0, {FinishReason::stop, "text", 0.5F});
  writer.finish();
}

struct Located {
  Field field = Field::count;
  LocatedValues values;
};

/// Values that can be located read like those of read_raw. If `any`, values that were written
/// unchanged in a chunk of their own are located.
std::vector<Located> check_all(const TraceReader& trace, bool any) {
  std::vector<Located> all;
  const auto layers = static_cast<std::int64_t>(trace.info().meta.layers.size());
  for (const DatasetSpec& spec : kDatasets) {
    const bool by_layer = spec.storage == Storage::row_layer;
    if (!trace.has(spec.field) || (!by_layer && spec.storage != Storage::row)) continue;
    const std::size_t bytes = row_bytes(spec, trace.info().meta);
    for (std::int64_t row = 0; row < trace.info().num_rows; ++row) {
      for (std::int64_t layer = 0; layer < (by_layer ? layers : 1); ++layer) {
        const std::int64_t slot = by_layer ? layer : TraceReader::kAllLayersOfRow;
        const auto found = trace.locate(spec.field, row, slot);
        EXPECT_EQ(found.has_value(), any && trace.written(spec.field, row, layer)) << spec.path;
        if (!found) continue;
        std::vector<std::byte> expected(by_layer ? bytes / static_cast<std::size_t>(layers)
                                                 : bytes);
        EXPECT_EQ(found->bytes, expected.size()) << spec.path;
        if (found->bytes != expected.size()) continue;
        trace.read_raw(spec.field, row, 1, slot, expected);
        std::vector<std::byte> read(expected.size());
        found->prefetch();
        found->read(read);
        EXPECT_EQ(read, expected) << spec.path << " row " << row;
        std::vector<std::byte> cached(expected.size());
        if (found->read_cached(cached)) {
          EXPECT_EQ(cached, expected) << spec.path << " row " << row;
        }
        all.push_back({spec.field, *found});
      }
    }
  }
  return all;
}

TEST(LocatedValues, AreThoseThatHdf5Reads) {
  const TempDir dir;
  for (const ArrayType type : {ArrayType::bf16, ArrayType::f32}) {
    const std::string path = dir.file(type == ArrayType::bf16 ? "a.h5" : "b.h5");
    write_trace(path, type);
    const TraceReader trace(path);
    EXPECT_FALSE(check_all(trace, true).empty());
    EXPECT_THROW((void)trace.locate(Field::query, trace.info().num_rows, 0), UsageError);
    EXPECT_THROW((void)trace.locate(Field::query, 0, 2), UsageError);
    EXPECT_THROW((void)trace.locate(Field::sequence_name_start, 0, 0), UsageError);
  }
}

TEST(LocatedValues, OfAMergedTraceLieInTheFilesItWasMadeOf) {
  const TempDir dir;
  write_trace(dir.file("a.h5"), ArrayType::bf16, 0);
  write_trace(dir.file("b.h5"), ArrayType::bf16, 1);
  repack_traces({dir.file("a.h5"), dir.file("b.h5")}, dir.file("c.h5"), {});
  const TraceReader merged(dir.file("c.h5"));
  ASSERT_EQ(merged.info().num_rows, 8);
  EXPECT_FALSE(check_all(merged, true).empty());
  const auto first = merged.locate(Field::query, 1, 1);
  const auto second = merged.locate(Field::query, 5, 1);
  ASSERT_TRUE(first && second);
  EXPECT_THAT(std::string(first->dataset), HasSubstr("a.h5"));
  EXPECT_THAT(std::string(second->dataset), HasSubstr("b.h5"));
}

TEST(LocatedValues, AreNoneOfACompressedTrace) {
  const TempDir dir;
  write_trace(dir.file("a.h5"), ArrayType::bf16);
  RepackOptions options;
  options.deflate = 1;
  repack_traces({dir.file("a.h5")}, dir.file("c.h5"), options);
  EXPECT_TRUE(check_all(TraceReader(dir.file("c.h5")), false).empty());
}

TEST(LocatedValues, BehindTheEndOfAFileThatWasCutAreAnError) {
  const TempDir dir;
  const std::string path = dir.file("a.h5");
  write_trace(path, ArrayType::bf16);
  const TraceReader trace(path);
  const auto found = trace.locate(Field::query, 3, 1);
  ASSERT_TRUE(found);
  std::filesystem::resize_file(path, found->offset + found->bytes / 2);
  std::vector<std::byte> values(found->bytes);
  EXPECT_FALSE(found->read_cached(values));
  try {
    found->read(values);
    FAIL() << "expected an error";
  } catch (const CorruptTrace& error) {
    EXPECT_THAT(error.what(), HasSubstr(path + ":/query/query: expected data at bytes"));
    EXPECT_THAT(error.what(), HasSubstr("got the end of the file at"));
  }
}

TEST(LocatedValues, OutOfTheirBoundsAreAnError) {
  const TempDir dir;
  const std::string path = dir.file("a.h5");
  write_trace(path, ArrayType::bf16);
  const TraceReader trace(path);
  const auto found = trace.locate(Field::set_topk_token, 1, 0);
  ASSERT_TRUE(found && found->bounds);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(found->offset));
  file.write("\xff\xff\xff\x7f", 4);
  file.close();
  std::vector<std::byte> values(found->bytes);
  EXPECT_THROW(found->read(values), CorruptTrace);
  EXPECT_THROW((void)trace.read_floats(Field::set_topk_token, 1, 1), UsageError);
  EXPECT_THROW((void)trace.read_ints(Field::set_topk_token, 1, 1), CorruptTrace);
}

}  // namespace
}  // namespace blockscope
