// Tokens taken back and positions computed: what the writer accepts, what a reader gets, and that
// traces without them are as before.
#include <gtest/gtest.h>

#include <limits>

#include "decode_record/compare/compare_traces.h"
#include "decode_record/read/trace_reader.h"
#include "decode_record/repack/repack.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using fixture::TempDir;

/// A sequence of 8 positions. Its rows decide and take back the given tokens.
class Rows {
 public:
  explicit Rows(TraceWriter& writer) : writer_(writer) {
    sequence_ = writer.begin_sequence(fixture::sequence_start(0, 2));
  }
  void add(std::vector<std::int64_t> positions, std::vector<std::int64_t> tokens,
           std::vector<RevokedToken> revoked, std::vector<LayerRanges> cache = {}) {
    TraceRow row;
    row.sequence = sequence_;
    row.block = 0;
    row.step = ++step_;
    std::vector<float> confidence(positions.size(), 0.5F);
    row.delta = make_transfer(std::move(positions), std::move(tokens), std::move(confidence));
    row.revoked = std::move(revoked);
    row.cache = std::move(cache);
    try {
      writer_.append_row(std::move(row));
    } catch (...) {
      --step_;
      throw;
    }
  }
  void end() { writer_.end_sequence(sequence_, {}); }

 private:
  TraceWriter& writer_;
  std::int64_t sequence_ = 0;
  std::int64_t step_ = 0;
};

TraceMeta trajectory_meta() { return fixture::small_meta(RecordLevel::trajectory); }

TEST(Revocations, AreAnEventAndATransferOfTheMask) {
  const TempDir dir;
  TraceWriter writer(dir.file("x.h5"), trajectory_meta());
  Rows rows(writer);
  rows.add({1, 3}, {11, 13}, {});
  rows.add({4}, {14}, {{3, 13, 0.125F}});
  rows.add({3}, {23}, {{1, 11, 0.25F}, {4, 14, 0.0F}});
  rows.end();
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  EXPECT_TRUE(reader.revoked(0).empty());
  ASSERT_EQ(reader.revoked(2).size(), 2U);
  EXPECT_EQ(reader.revoked(2)[1].position, 4);
  EXPECT_EQ(reader.revoked(2)[1].token, 14);
  EXPECT_EQ(reader.revoked(1)[0].confidence, 0.125F);
  const Frame second = reader.frame(0, 2);
  EXPECT_EQ(second.generated_tokens, (std::vector<std::int64_t>{99, 11, 99, 99, 14, 99, 99, 99}));
  EXPECT_EQ(second.confidence[3], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(second.steps[3], kUndecodedStep);
  // A position taken back is like one never decided, and may be decided again.
  const Frame last = reader.frame(0, 3);
  EXPECT_EQ(last.generated_tokens, (std::vector<std::int64_t>{99, 99, 99, 23, 99, 99, 99, 99}));
  EXPECT_EQ(last.steps[3], 2);
  EXPECT_EQ(last.masks_left(), 7U);
}

TEST(Revocations, ThatDoNotFitTheFrameAreRefused) {
  const TempDir dir;
  TraceWriter writer(dir.file("x.h5"), trajectory_meta());
  Rows rows(writer);
  rows.add({1}, {11}, {});
  EXPECT_THROW(rows.add({}, {}, {{2, 11, 0.1F}}), UsageError);     // the position is a mask
  EXPECT_THROW(rows.add({}, {}, {{1, 12, 0.1F}}), UsageError);     // another token
  EXPECT_THROW(rows.add({}, {}, {{8, 11, 0.1F}}), UsageError);     // no such position
  EXPECT_THROW(rows.add({1}, {12}, {{1, 11, 0.1F}}), UsageError);  // changed as well
  EXPECT_THROW(rows.add({}, {}, {{1, 11, 0.1F}, {1, 11, 0.1F}}), UsageError);  // twice
  rows.add({}, {}, {{1, 11, 0.1F}});
  rows.end();
  writer.finish();
  EXPECT_EQ(TraceReader(dir.file("x.h5")).frame(0, 2).masks_left(), 8U);
}

TEST(Revocations, NeedATraceThatHasThem) {
  const TempDir dir;
  TraceMeta meta = trajectory_meta();
  meta.has_revocations = meta.has_cache = meta.has_kl = false;
  TraceWriter writer(dir.file("x.h5"), meta);
  Rows rows(writer);
  rows.add({1}, {11}, {});
  EXPECT_THROW(rows.add({}, {}, {{1, 11, 0.1F}}), UsageError);
  EXPECT_THROW(rows.add({}, {}, {}, std::vector<LayerRanges>(3)), UsageError);
  rows.end();
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  for (const Field field : {Field::revoke_end, Field::query_end, Field::prediction_kl}) {
    EXPECT_FALSE(reader.has(field));
  }
  EXPECT_TRUE(reader.revoked(0).empty());
}

TEST(CacheRanges, OfPositions) {
  const std::vector<std::int64_t> positions{0, 1, 2, 5, 7, 8};
  EXPECT_EQ(ranges_of(positions), (std::vector<PositionRange>{{0, 3}, {5, 6}, {7, 9}}));
  EXPECT_TRUE(ranges_of({}).empty());
}

TEST(CacheRanges, MustRiseWithGaps) {
  const TempDir dir;
  TraceWriter writer(dir.file("x.h5"), trajectory_meta());
  Rows rows(writer);
  const auto add = [&](std::vector<PositionRange> ranges) {
    std::vector<LayerRanges> cache(3);
    cache[2].key = std::move(ranges);
    rows.add({}, {}, {}, std::move(cache));
  };
  EXPECT_THROW(add({{2, 2}}), UsageError);
  EXPECT_THROW(add({{3, 5}, {1, 2}}), UsageError);
  EXPECT_THROW(add({{1, 3}, {3, 5}}), UsageError);
  EXPECT_THROW(add({{-1, 3}}), UsageError);
  EXPECT_THROW(rows.add({}, {}, {}, std::vector<LayerRanges>(2)), UsageError);
  add({{1, 3}, {4, 5}});
  rows.end();
  writer.finish();
  EXPECT_EQ(TraceReader(dir.file("x.h5")).cache(0)[2].key.size(), 2U);
}

/// A merged trace holds both files' ranges and revocations, renumbered.
TEST(CacheRanges, AndRevocationsSurviveAMerge) {
  const TempDir dir;
  const auto write = [&](const std::string& name, std::int64_t token) {
    TraceMeta meta = trajectory_meta();
    meta.run_json = R"({"version":"test","rank":)" + std::to_string(token) + "}";
    TraceWriter writer(dir.file(name), meta);
    Rows rows(writer);
    rows.add({1, 3}, {token, 13}, {}, fixture::cache_of(meta, token));
    rows.add({4}, {14}, {{1, token, 0.125F}}, fixture::cache_of(meta, token + 1));
    rows.end();
    writer.finish();
  };
  write("a.h5", 11);
  write("b.h5", 12);
  const auto repacked = repack_traces({dir.file("a.h5"), dir.file("b.h5")}, dir.file("c.h5"), {});
  EXPECT_EQ(repacked.rows, 4);
  const TraceReader merged(dir.file("c.h5"));
  const TraceReader second(dir.file("b.h5"));
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(merged.cache(row + 2)[l].query, second.cache(row)[l].query);
      EXPECT_EQ(merged.cache(row + 2)[l].key, second.cache(row)[l].key);
      EXPECT_EQ(merged.cache(row + 2)[l].value, second.cache(row)[l].value);
    }
  }
  EXPECT_EQ(merged.revoked(3)[0].token, 12);
  EXPECT_EQ(merged.revoked(1)[0].token, 11);
  EXPECT_TRUE(merged.revoked(2).empty());
}

TEST(CacheRanges, GoOnBehindAResume) {
  const TempDir dir;
  const TraceMeta meta = trajectory_meta();
  {
    TraceWriter writer(dir.file("x.h5"), meta);
    Rows rows(writer);
    rows.add({1}, {11}, {}, fixture::cache_of(meta, 0));
    rows.add({2}, {12}, {{1, 11, 0.5F}}, fixture::cache_of(meta, 1));
    writer.suspend();
  }
  ResumeState state;
  TraceWriter writer = TraceWriter::resume(dir.file("x.h5"), meta, state);
  EXPECT_EQ(state.num_rows, 2);
  Rows rows(writer);
  rows.add({5}, {15}, {}, fixture::cache_of(meta, 2));
  rows.end();
  writer.finish();
  const TraceReader reader(dir.file("x.h5"));
  for (std::int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(reader.cache(row)[1].query, fixture::cache_of(meta, row)[1].query);
  }
  EXPECT_EQ(reader.revoked(1).size(), 1U);
  EXPECT_TRUE(reader.revoked(2).empty());
}

TEST(CacheRanges, DifferInADiff) {
  const TempDir dir;
  const auto write = [&](const std::string& name, std::int64_t at) {
    TraceWriter writer(dir.file(name), trajectory_meta());
    Rows rows(writer);
    rows.add({1}, {11}, {}, fixture::cache_of(trajectory_meta(), at));
    rows.end();
    writer.finish();
  };
  write("a.h5", 0);
  write("b.h5", 0);
  write("c.h5", 1);
  CompareOptions options;
  options.ignore_timing = true;
  for (const bool aligned : {false, true}) {
    options.ignore_aborted = aligned;
    EXPECT_TRUE(compare_traces(dir.file("a.h5"), dir.file("b.h5"), options).equal);
    EXPECT_FALSE(compare_traces(dir.file("a.h5"), dir.file("c.h5"), options).equal);
  }
}

}  // namespace
}  // namespace blockscope
