// What TraceWriter writes, TraceReader reads: every dataset, frames, sequences, while writing and
// after, at every level and in both array types.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "decode_record/read/trace_reader.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using fixture::TempDir;

/// Writes `sequences` interleaved sequences of `blocks` blocks; returns their live frames over
/// time.
std::vector<std::vector<Frame>> write_trace(TraceWriter& writer, const TraceMeta& meta,
                                            std::int64_t sequences, std::int64_t blocks) {
  std::vector<std::vector<Frame>> frames(static_cast<std::size_t>(sequences));
  std::int64_t number = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const SequenceStart start = fixture::sequence_start(s, blocks);
    frames[static_cast<std::size_t>(s)].push_back(make_initial_frame(
        start.prompt, static_cast<std::size_t>(start.gen_length), meta.mask_token_id));
    EXPECT_EQ(writer.begin_sequence(start), s);
    TraceRow row;
    row.sequence = s;
    row.kind = PassKind::prefill;
    row.pass = number++;
    fixture::add_prefix(row, meta, 0, 4 + s);
    writer.append_row(std::move(row));
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t step = 0; step < 2; ++step) {
      for (std::int64_t s = 0; s < sequences; ++s) {
        TraceRow row = fixture::denoise_row(meta, s, number++, block, step);
        Frame next = frames[static_cast<std::size_t>(s)].back();
        apply_delta(next, *row.delta);
        frames[static_cast<std::size_t>(s)].push_back(std::move(next));
        writer.append_row(std::move(row));
      }
    }
    for (std::int64_t s = 0; s < sequences; ++s) {
      TraceRow row;
      row.sequence = s;
      row.kind = PassKind::commit;
      row.block = block;
      row.pass = number++;
      fixture::add_prefix(row, meta, 4 + s + block * 4, 4);
      writer.append_row(std::move(row));
    }
  }
  for (std::int64_t s = 0; s < sequences; ++s) {
    writer.end_sequence(s, {FinishReason::stop, "text of " + std::to_string(s), 0.5F});
  }
  return frames;
}

void expect_row_values(const TraceReader& reader, Field field, std::int64_t row) {
  const TraceMeta& meta = reader.info().meta;
  const DatasetSpec& spec = spec_of(field);
  const bool floats = spec.type == ElementType::f32 || spec.type == ElementType::f16 ||
                      spec.type == ElementType::array;
  const std::int64_t layers =
      fixture::has_layers(spec) ? static_cast<std::int64_t>(meta.layers.size()) : 1;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::int64_t slot = fixture::has_layers(spec) ? layer : kAllLayers;
    std::vector<float> got;
    if (floats) {
      got = reader.read_floats_at(field, row, slot);
    } else {
      const auto ints = reader.read_ints_at(field, row, slot);
      got.assign(ints.begin(), ints.end());
    }
    ASSERT_EQ(got.size() * static_cast<std::size_t>(layers),
              row_bytes(spec, meta) / element_size(spec, meta));
    for (std::size_t i = 0; i < got.size(); ++i) {
      float expected = fixture::expected_value(field, row, layer, static_cast<std::int64_t>(i));
      if (!floats) expected = std::trunc(expected);
      ASSERT_EQ(got[i], expected) << spec.path << " row " << row << " element " << i;
    }
  }
}

void expect_all_values(const TraceReader& reader) {
  const StepColumns steps = reader.steps(0, reader.info().num_rows);
  for (std::int64_t row = 0; row < reader.info().num_rows; ++row) {
    const bool recorded = steps.recorded[static_cast<std::size_t>(row)] != 0;
    for (const DatasetSpec& spec : kDatasets) {
      if (!fixture::is_recorders(spec, reader.info().meta)) continue;
      if (recorded) {
        expect_row_values(reader, spec.field, row);
        EXPECT_TRUE(reader.written(spec.field, row, 0));
      } else if (spec.type == ElementType::f32 || spec.type == ElementType::f16 ||
                 spec.type == ElementType::array) {
        for (const float value : reader.read_floats(spec.field, row, 1)) {
          ASSERT_TRUE(std::isnan(value)) << spec.path << " row " << row;
        }
      }
    }
  }
}

void expect_cache(const TraceReader& reader) {
  const StepColumns steps = reader.steps(0, reader.info().num_rows);
  const TraceMeta& meta = reader.info().meta;
  for (std::int64_t row = 0; row < reader.info().num_rows; ++row) {
    const bool denoises = steps.kind[static_cast<std::size_t>(row)] == 1;
    const auto want = denoises ? fixture::cache_of(meta, row) : std::vector<LayerRanges>(3);
    const auto got = reader.cache(row);
    ASSERT_EQ(got.size(), 3U);
    for (std::size_t l = 0; l < 3; ++l) {
      ASSERT_EQ(got[l].query, want[l].query) << row << " layer " << l;
      ASSERT_EQ(got[l].key, want[l].key) << row << " layer " << l;
      ASSERT_EQ(got[l].value, want[l].value) << row << " layer " << l;
    }
  }
}

class TraceRoundTrip : public testing::TestWithParam<std::tuple<RecordLevel, ArrayType>> {};

TEST_P(TraceRoundTrip, EveryValueOfEveryDatasetComesBack) {
  const TempDir dir;
  TraceMeta meta = fixture::small_meta(std::get<0>(GetParam()), std::get<1>(GetParam()));
  meta.has_shadow = true;
  meta.has_residual = true;
  meta.selected_size = 6;
  meta.experts_per_token = 2;
  meta.num_experts = 4;
  meta.regions = {"first", "prompt", "question", "answer", "decided", "masks", "after"};
  meta.distance_bins = 3;
  meta.has_set_norms = true;
  meta.has_interventions = true;
  meta.map_layers = {2};
  meta.map_heads = {0, 3};
  meta.map_positions = 20;
  TraceWriter writer(dir.file("x.h5"), meta);
  write_trace(writer, meta, 3, 5);
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(dir.file("x.h5.partial")));
  const TraceReader reader(dir.file("x.h5"));
  EXPECT_TRUE(reader.info().complete);
  EXPECT_FALSE(reader.info().partial);
  EXPECT_EQ(reader.info().num_rows, 3 + 3 * 5 * 3);
  EXPECT_EQ(reader.info().meta.layers, meta.layers);
  EXPECT_EQ(reader.info().meta.heads, meta.heads);
  EXPECT_EQ(reader.info().meta.run_json, meta.run_json);
  if (reader.has(Field::map_weight)) {
    EXPECT_EQ(reader.info().meta.map_heads, meta.map_heads);
    EXPECT_EQ(reader.info().meta.map_positions, meta.map_positions);
  }
  EXPECT_EQ(reader.piece(42), "piece42");
  if (reader.has(Field::sequence_prompt_region)) {  // the writer fills what the caller left out
    const std::vector<std::uint8_t> regions = reader.sequence(1).prompt_regions;
    EXPECT_EQ(regions.size(), reader.sequence(1).prompt.size());
    EXPECT_EQ(std::set(regions.begin(), regions.end()), (std::set<std::uint8_t>{0, 1}));
  }
  expect_all_values(reader);
  expect_cache(reader);
  // Reading ahead changes nothing that is read, whatever was or wasn't written.
  for (std::size_t f = 0; f < kNumFields; ++f) {
    const auto field = static_cast<Field>(f);
    if (!spec_of(field).per_row() || !reader.has(field)) continue;
    for (std::int64_t row = 0; row < reader.info().num_rows; ++row) {
      const bool layers = spec_of(field).storage == Storage::row_layer;
      reader.prefetch(field, row, layers ? 0 : TraceReader::kAllLayersOfRow);
    }
  }
  expect_all_values(reader);
}

INSTANTIATE_TEST_SUITE_P(LevelsAndTypes, TraceRoundTrip,
                         testing::Combine(testing::Values(RecordLevel::trajectory,
                                                          RecordLevel::summary, RecordLevel::sets,
                                                          RecordLevel::outputs, RecordLevel::full),
                                          testing::Values(ArrayType::bf16, ArrayType::f32)));

TEST(TraceReader, ServesTheLiveFramesOfInterleavedSequences) {
  const TempDir dir;
  const TraceMeta meta = fixture::small_meta(RecordLevel::trajectory);
  TraceWriter writer(dir.file("x.h5"), meta);
  const auto frames = write_trace(writer, meta, 3, 70);  // 210 rows each: four keyframes
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  for (std::int64_t s = 0; s < 3; ++s) {
    const auto& live = frames[static_cast<std::size_t>(s)];
    const DecodeRecord record = reader.decode_record(s);
    ASSERT_EQ(record.num_frames(), live.size());
    for (std::size_t t = 0; t < live.size(); ++t) {
      ASSERT_EQ(reader.frame(s, static_cast<std::int64_t>(t)), live[t]) << s << " frame " << t;
      ASSERT_EQ(record.frame(t), live[t]);
    }
    EXPECT_THROW(reader.frame(s, static_cast<std::int64_t>(live.size())), FrameError);
    EXPECT_THROW(reader.frame(s, -1), FrameError);
  }
  EXPECT_THROW(reader.frame(3, 0), UsageError);
}

TEST(TraceReader, ServesInsertionsAndDeletionsAcrossAKeyframe) {
  const TempDir dir;
  TraceMeta meta = fixture::small_meta(RecordLevel::trajectory);
  TraceWriter writer(dir.file("x.h5"), meta);
  const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 3));
  std::vector<Frame> live{make_initial_frame(fixture::sequence_start(0, 3).prompt, 12, 99)};
  for (std::int64_t t = 0; t < 100; ++t) {
    FrameDelta delta;
    SequenceDelta& row = delta.rows.front();
    row.decoded_tokens = {t % 90, (t + 1) % 90, (t + 2) % 90};
    row.confidence = {0.25F, 0.5F, 0.75F};
    row.transfer_index = {t % 12};
    row.transfer_src_index = {0};
    row.insert_index = {t % 13, 0};
    row.insert_src_index = {1, 2};
    row.delete_index = {t % 14, (t + 5) % 14};
    Frame next = live.back();
    apply_delta(next, delta);
    live.push_back(next);
    TraceRow item;
    item.sequence = s;
    item.step = t + 1;
    item.delta = delta;
    writer.append_row(std::move(item));
  }
  writer.end_sequence(s, {});
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  for (std::size_t t = 0; t < live.size(); ++t) {
    ASSERT_EQ(reader.frame(s, static_cast<std::int64_t>(t)), live[t]) << t;
  }
}

TEST(TraceReader, ServesTheCommittedPrefixOfALayer) {
  const TempDir dir;
  const TraceMeta meta = fixture::small_meta(RecordLevel::full, ArrayType::f32);
  TraceWriter writer(dir.file("x.h5"), meta);
  write_trace(writer, meta, 2, 3);
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  const std::int64_t last = reader.rows_of(1).back();
  const auto prefix = reader.prefix(Field::prefix_value, last, 1);
  ASSERT_EQ(prefix.positions.size(), 5U + 8U);  // the prompt and two committed blocks
  for (std::size_t i = 0; i < prefix.positions.size(); ++i) {
    ASSERT_EQ(prefix.positions[i], static_cast<std::int32_t>(i));
  }
  const std::size_t width = 2 * 8;
  ASSERT_EQ(prefix.values.size(), prefix.positions.size() * width);
  EXPECT_EQ(prefix.values[3], fixture::expected_value(Field::prefix_value, 0, 1, 3));
  EXPECT_EQ(prefix.values[5 * width + 2], fixture::expected_value(Field::prefix_value, 5, 1, 2));
}

TEST(TraceReader, ThePrefixOfABidirectionalRowIncludesItsOwnKeys) {
  const TempDir dir;
  TraceMeta meta = fixture::small_meta(RecordLevel::full, ArrayType::f32);
  meta.bidirectional = true;
  TraceWriter writer(dir.file("x.h5"), meta);
  writer.begin_sequence(fixture::sequence_start(0, 2));
  for (std::int64_t number = 0; number < 2; ++number) {
    TraceRow row = fixture::denoise_row(meta, 0, number, 0, number);
    fixture::add_prefix(row, meta, number, 3);
    writer.append_row(std::move(row));
  }
  writer.end_sequence(0, {});
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  EXPECT_EQ(reader.prefix(Field::prefix_key, 0, 0).positions, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(reader.prefix(Field::prefix_key, 1, 0).positions,
            (std::vector<std::int32_t>{0, 1, 2, 3}));
}

TEST(TraceReader, TellsEverythingAboutASequence) {
  const TempDir dir;
  const TraceMeta meta = fixture::small_meta(RecordLevel::trajectory);
  TraceWriter writer(dir.file("x.h5"), meta);
  write_trace(writer, meta, 3, 2);
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  const SequenceInfo info = reader.sequence(2);
  const SequenceStart start = fixture::sequence_start(2, 2);
  EXPECT_EQ(info.name, "task-2");
  EXPECT_EQ(info.prompt, start.prompt);
  EXPECT_EQ(info.prompt_hash, hash_prompt(start.prompt));
  EXPECT_EQ(info.gen_length, 8);
  EXPECT_EQ(info.answer, "answer 2");
  EXPECT_EQ(info.metric, "exact_match");
  EXPECT_EQ(info.text, "text of 2");
  EXPECT_EQ(info.score, 0.5F);
  EXPECT_FALSE(info.aborted);
  EXPECT_EQ(info.finish_reason, FinishReason::stop);
}

TEST(TraceReader, FollowsARunAcrossTheRename) {
  const TempDir dir;
  const TraceMeta meta = fixture::small_meta(RecordLevel::outputs);
  TraceWriter writer(dir.file("x.h5"), meta);
  const std::int64_t s = writer.begin_sequence(fixture::sequence_start(0, 400));
  std::int64_t number = 0;
  const auto append = [&](std::int64_t count) {
    for (; count > 0; --count, ++number) {
      writer.append_row(fixture::denoise_row(meta, s, number, number / 2, number % 2));
    }
    writer.commit();
  };
  append(3);
  TraceReader reader(dir.file("x.h5"));  // only the .partial is there
  EXPECT_TRUE(reader.info().partial);
  EXPECT_EQ(reader.info().num_rows, 3);
  expect_all_values(reader);
  EXPECT_FALSE(reader.refresh());
  append(700);
  EXPECT_EQ(reader.info().num_rows, 3);
  EXPECT_TRUE(reader.refresh());
  EXPECT_EQ(reader.info().num_rows, 703);
  expect_all_values(reader);
  writer.end_sequence(s, {});
  writer.finish();
  EXPECT_TRUE(reader.refresh());
  EXPECT_TRUE(reader.info().complete);
  EXPECT_EQ(reader.info().path, dir.file("x.h5"));
  expect_all_values(reader);
}

}  // namespace
}  // namespace blockscope
