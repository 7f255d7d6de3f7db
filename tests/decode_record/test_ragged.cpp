// Ragged layers and canvases without masks: what the header holds, what frames say, what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_record/read/trace_reader.h"
#include "decode_record/schema/seen_keys.h"
#include "decode_record/schema/trace_layout.h"
#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Two sliding layers and a global one, as in DiffusionGemma.
TraceMeta ragged_meta(RecordLevel level = RecordLevel::trajectory) {
  TraceMeta meta = fixture::small_meta(level);
  meta.has_cache = meta.has_revocations = meta.has_kl = false;
  meta.set_size = 0;
  meta.mask_token_id = -1;
  meta.noise_canvas = true;
  meta.num_heads = 4;
  meta.num_kv_heads = 4;
  meta.head_dim = 16;
  meta.layer_kv_heads = {4, 4, 2};
  meta.layer_head_dim = {8, 8, 16};
  meta.layer_window = {6, 6, 0};
  meta.record_everything();
  return meta;
}

std::string refusal(const TraceMeta& meta) {
  try {
    check_meta(meta);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TraceRow row_of(PassKind kind, std::int64_t step, std::optional<FrameDelta> delta) {
  TraceRow row;
  row.kind = kind;
  row.step = step;
  row.block = kind == PassKind::prefill ? -1 : 0;
  row.delta = std::move(delta);
  return row;
}

constexpr float kNoise = kUntouchedConfidence;

TEST(Ragged, SizesOfALayerComeFromTheFile) {
  const fixture::TempDir dir;
  TraceWriter(dir.file("x.h5"), ragged_meta()).finish();
  const TraceMeta meta = TraceReader(dir.file("x.h5")).info().meta;
  EXPECT_EQ(meta.format_version, kRaggedFormatVersion);
  EXPECT_EQ(meta.kv_heads_of(1), 4);
  EXPECT_EQ(meta.kv_heads_of(2), 2);
  EXPECT_EQ(meta.head_dim_of(2), 16);
  EXPECT_EQ(meta.group_size(2), 2);
  EXPECT_EQ(meta.kv_head_of(2, 3), 1);
  EXPECT_EQ(meta.kv_head_of(0, 3), 3);
  EXPECT_EQ(meta.external_keys(0, 20), 5);
  EXPECT_EQ(meta.first_key(0, 20), 15);
  EXPECT_EQ(meta.external_keys(0, 3), 3);
  EXPECT_EQ(meta.external_keys(2, 20), 20);
  EXPECT_TRUE(meta.noise_canvas);
}

constexpr const char* kDraftJson =
    R"({"requested":"","resolved":{"draft_causal_layers":{"value":[true,false,false]}}})";

TEST(Ragged, AQueryOfADraftSeesTheNewestKeysUpToItsOwn) {
  TraceMeta meta = ragged_meta();
  meta.model_json = kDraftJson;
  EXPECT_TRUE(seen_keys(meta, 0).all());  // no draft: the window is that of the block
  meta.has_draft = true;
  const SeenKeys causal = seen_keys(meta, 0);  // window 6
  EXPECT_TRUE(causal.sees(0, 0) && causal.sees(0, -5) && causal.sees(2, 1) && causal.sees(2, -3));
  EXPECT_FALSE(causal.sees(0, 1) || causal.sees(0, -6) || causal.sees(2, -4));
  const SeenKeys window = seen_keys(meta, 1);
  EXPECT_TRUE(window.sees(0, 3) && window.sees(2, -3));
  EXPECT_FALSE(window.sees(2, -4));
  EXPECT_TRUE(seen_keys(meta, 2).all());
}

TEST(Ragged, ATargetsPassOverADraftIsCausalInEveryLayer) {
  TraceMeta meta = fixture::small_meta();
  meta.has_draft = true;
  meta.model_json = R"({"requested":"","draft":{"requested":""}})";
  for (const std::int64_t layer : {0, 2}) {
    const SeenKeys seen = seen_keys(meta, layer);
    EXPECT_TRUE(seen.sees(1, 1) && seen.sees(1, -1000));
    EXPECT_FALSE(seen.sees(1, 2));
  }
}

TEST(Ragged, OtherTracesKeepTheirVersion) {
  const fixture::TempDir dir;
  TraceWriter(dir.file("x.h5"), fixture::small_meta()).finish();
  const TraceMeta meta = TraceReader(dir.file("x.h5")).info().meta;
  EXPECT_EQ(meta.format_version, kTraceFormatVersion);
  EXPECT_FALSE(meta.ragged());
}

TEST(Ragged, ChannelsAreThoseOfTheLargestRecordedLayer) {
  TraceMeta meta = ragged_meta();
  EXPECT_EQ(axis_length(Axis::channel, meta), 16);
  meta.layers = {0, 1};
  EXPECT_EQ(axis_length(Axis::channel, meta), 8);
}

TEST(Ragged, SizesThatContradictEachOtherAreRefused) {
  TraceMeta meta = ragged_meta();
  EXPECT_EQ(refusal(meta), "");
  meta.layer_window.pop_back();
  EXPECT_THAT(refusal(meta), HasSubstr("layer_window: expected 3 values"));
  meta = ragged_meta();
  meta.layer_kv_heads[1] = 3;
  EXPECT_THAT(refusal(meta), HasSubstr("layer 1: expected a divisor of the 4 query heads, got 3"));
  meta = ragged_meta();
  meta.layer_head_dim[2] = 8;
  EXPECT_THAT(refusal(meta), HasSubstr("head_dim: expected the largest of its layers, 8, got 16"));
  meta = ragged_meta();
  meta.layer_head_dim[0] = 0;
  EXPECT_THAT(refusal(meta), HasSubstr("layer_head_dim: layer 0: expected 1 to 16, got 0"));
  meta = ragged_meta();
  meta.bidirectional = true;
  EXPECT_THAT(refusal(meta), HasSubstr("layer_window: expected 0 in a bidirectional model"));
  meta = ragged_meta();
  meta.mask_token_id = 99;
  EXPECT_THAT(refusal(meta), HasSubstr("noise_canvas: expected a mask_token_id of -1"));
  meta = ragged_meta();
  meta.has_revocations = true;
  EXPECT_THAT(refusal(meta), HasSubstr("noise_canvas: expected no revocations"));
}

TEST(Ragged, NoiseIsUndecidedWhateverItsToken) {
  const fixture::TempDir dir;
  const TraceMeta meta = ragged_meta();
  TraceWriter writer(dir.file("x.h5"), meta);
  const std::int64_t sequence = writer.begin_sequence(
      {.name = "a", .prompt = {5, 6}, .gen_length = 4, .answer = "", .metric = ""});
  Frame frame = make_initial_frame({5, 6}, 4, -1);
  const auto append = [&](PassKind kind, std::int64_t step, std::vector<std::int64_t> tokens,
                          std::vector<float> confidence) {
    const FrameDelta delta =
        make_canvas(frame, {0, 1, 2, 3}, std::move(tokens), std::move(confidence));
    writer.append_row(row_of(kind, step, delta));
    apply_delta(frame, delta);
  };
  append(PassKind::prefill, 0, {1, 2, 3, 4}, {kNoise, kNoise, kNoise, kNoise});
  append(PassKind::denoise, 1, {1, 8, 9, 4}, {0.5F, kNoise, kNoise, 0.75F});
  append(PassKind::denoise, 2, {7, 8, 2, 4}, {kNoise, 0.5F, kNoise, 0.75F});  // 0 is noise again
  append(PassKind::denoise, 3, {1, 8, 2, 4}, {0.5F, 0.5F, 0.25F, 0.75F});
  writer.end_sequence(sequence, {});
  writer.finish();

  TraceReader reader(dir.file("x.h5"));
  const Frame before = reader.frame(0, 0);
  EXPECT_THAT(before.generated_tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(before.masks_left(), 4U);
  const Frame second = reader.frame(0, 1);
  EXPECT_THAT(second.steps, ElementsAre(0, -1, -1, 0));
  EXPECT_EQ(second.masks_left(), 2U);
  const Frame third = reader.frame(0, 2);
  EXPECT_THAT(third.steps, ElementsAre(-1, 1, -1, 0));  // 3 was accepted again, with the same token
  EXPECT_TRUE(third.undecided(0));
  EXPECT_THAT(third.generated_tokens, ElementsAre(7, 8, 2, 4));
  EXPECT_THAT(reader.frame(0, 3).steps, ElementsAre(2, 1, 2, 0));
  EXPECT_EQ(reader.decode_record(0).num_deltas(), 3U);
}

TEST(Ragged, NoiseWithAStepIsRefused) {
  const fixture::TempDir dir;
  TraceWriter writer(dir.file("x.h5"), ragged_meta());
  writer.begin_sequence({.name = "a", .prompt = {5}, .gen_length = 4, .answer = "", .metric = ""});
  FrameDelta delta = make_transfer({0, 1}, {1, 2}, {kNoise, 0.5F});
  EXPECT_THROW(writer.append_row(row_of(PassKind::denoise, 1, delta)),
               UsageError);  // noise, step 0
  delta.rows[0].transfer_step = {-1, -1};
  EXPECT_THROW(writer.append_row(row_of(PassKind::denoise, 1, delta)),
               UsageError);  // accepted, none
  delta.rows[0].transfer_step = {-1, 0};
  writer.append_row(row_of(PassKind::denoise, 1, delta));
}

}  // namespace
}  // namespace blockscope
