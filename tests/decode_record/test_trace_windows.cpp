// What the reader reads together is what it reads one by one, in any order: deltas of rows, facts
// of sequences. Also while the trace grows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

constexpr std::int64_t kSequences = 300;
constexpr std::int64_t kPerSequence = 3;
constexpr std::int64_t kLong = 66'000;  // positions of one row: more than a window holds
constexpr std::int64_t kMaskToken = 10;

TraceMeta plain_meta() {
  TraceMeta meta;
  meta.num_layers = meta.num_heads = meta.num_kv_heads = 1;
  meta.head_dim = meta.hidden_size = 2;
  meta.vocab_size = 11;
  meta.mask_token_id = kMaskToken;
  meta.softmax_scale = 1.0;
  meta.block_length = 4;
  meta.record_everything();
  return meta;
}

bool is_long(std::int64_t sequence) { return sequence == 17; }

std::int64_t length_of(std::int64_t sequence) { return is_long(sequence) ? kLong : 5; }

/// The positions that step `step` of a sequence decides: 0, 1 or 2 of them, or all of a long row.
std::vector<std::int64_t> positions_of(std::int64_t sequence, std::int64_t step) {
  std::vector<std::int64_t> positions;
  const std::int64_t count = is_long(sequence) && step == 1 ? kLong - 2 : (sequence + step) % 3;
  for (std::int64_t i = 0; i < count; ++i) {
    positions.push_back(is_long(sequence) && step != 1 ? kLong - 2 + i : i);
  }
  return positions;
}

std::int64_t token_of(std::int64_t sequence, std::int64_t step, std::int64_t position) {
  return (sequence + step + position) % kMaskToken;
}

class Written {
 public:
  explicit Written(const std::string& path) : writer_(path, plain_meta()) {}

  void add(std::int64_t sequence) {
    SequenceStart start;
    start.name = "name" + std::to_string(sequence);
    start.answer = std::string(static_cast<std::size_t>(sequence % 7), 'a');
    for (std::int64_t i = 0; i < sequence % 5; ++i) start.prompt.push_back(i);
    start.gen_length = length_of(sequence);
    writer_.begin_sequence(std::move(start));
    for (std::int64_t step = 1; step <= kPerSequence; ++step) {
      TraceRow row;
      row.sequence = sequence;
      row.pass = sequence * kPerSequence + step;
      row.kind = PassKind::denoise;
      row.step = step;
      const auto positions = positions_of(sequence, step);
      std::vector<std::int64_t> tokens;
      for (const std::int64_t p : positions) tokens.push_back(token_of(sequence, step, p));
      if (!positions.empty()) {
        row.delta = make_transfer(positions, tokens, std::vector<float>(positions.size(), 0.25F));
      }
      writer_.append_row(std::move(row));
    }
  }
  void end(std::int64_t sequence) {
    const std::string text = "text" + std::to_string(sequence);
    writer_.end_sequence(sequence, {FinishReason::length, text, static_cast<float>(sequence)});
  }
  TraceWriter& writer() { return writer_; }

 private:
  TraceWriter writer_;
};

void expect_row(const TraceReader& reader, std::int64_t row) {
  const std::int64_t sequence = row / kPerSequence;
  const std::int64_t step = row % kPerSequence + 1;
  const std::vector<std::int64_t> positions = positions_of(sequence, step);
  const SequenceDelta delta = reader.delta(row).rows.front();
  ASSERT_EQ(delta.transfer_index, positions) << "row " << row;
  ASSERT_EQ(delta.decoded_tokens.size(), positions.size());
  ASSERT_EQ(delta.confidence.size(), positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    ASSERT_EQ(delta.transfer_src_index[i], static_cast<std::int64_t>(i));
    ASSERT_EQ(delta.decoded_tokens[i], token_of(sequence, step, positions[i]));
  }
  EXPECT_TRUE(delta.insert_index.empty());
  EXPECT_TRUE(delta.delete_index.empty());
}

TEST(TraceWindows, DeltasAreTheRowsOwnInAnyOrder) {
  const fixture::TempDir folder;
  Written written(folder.file("t.h5"));
  for (std::int64_t s = 0; s < kSequences; ++s) written.add(s);
  for (std::int64_t s = 0; s < kSequences; ++s) written.end(s);
  written.writer().finish();
  const TraceReader reader(folder.file("t.h5"));
  ASSERT_EQ(reader.info().num_rows, kSequences * kPerSequence);
  for (std::int64_t row = 0; row < reader.info().num_rows; ++row) expect_row(reader, row);
  for (std::int64_t row = reader.info().num_rows - 1; row >= 0; --row) expect_row(reader, row);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    expect_row(reader, static_cast<std::int64_t>(random()) % reader.info().num_rows);
  }
}

TEST(TraceWindows, SequencesReadTogetherEqualThoseReadAlone) {
  const fixture::TempDir folder;
  Written written(folder.file("t.h5"));
  for (std::int64_t s = 0; s < 60; ++s) written.add(s);
  for (std::int64_t s = 0; s < 60; s += 2) written.end(s);
  written.writer().commit();
  const TraceReader reader(folder.file("t.h5"));
  for (const std::int64_t first : {0, 7, 59, 60}) {
    const auto together = reader.sequences(first, 60 - first);
    ASSERT_EQ(std::ssize(together), 60 - first);
    for (std::int64_t s = first; s < 60; ++s) {
      const SequenceInfo& one = together[static_cast<std::size_t>(s - first)];
      EXPECT_EQ(one.name, "name" + std::to_string(s));
      EXPECT_EQ(one.answer, std::string(static_cast<std::size_t>(s % 7), 'a'));
      EXPECT_EQ(std::ssize(one.prompt), s % 5);
      EXPECT_EQ(one.gen_length, length_of(s));
      EXPECT_EQ(one.prompt_hash, reader.sequence(s).prompt_hash);
      EXPECT_EQ(one.text, s % 2 == 0 ? "text" + std::to_string(s) : "");
      EXPECT_EQ(std::isnan(one.score), s % 2 == 1);
      if (s % 2 == 0) {
        EXPECT_EQ(one.score, static_cast<float>(s));
      }
    }
  }
  EXPECT_THROW(reader.sequences(1, 60), UsageError);
  EXPECT_THROW(reader.sequences(-1, 1), UsageError);
}

TEST(TraceWindows, ARowAfterTheWindowIsReadWhenTheTraceHasGrown) {
  const fixture::TempDir folder;
  Written written(folder.file("t.h5"));
  written.add(0);
  written.writer().commit();
  TraceReader reader(folder.file("t.h5"));
  for (std::int64_t row = 0; row < kPerSequence; ++row) expect_row(reader, row);
  written.add(1);
  written.writer().commit();
  ASSERT_TRUE(reader.refresh());
  ASSERT_EQ(reader.info().num_rows, 2 * kPerSequence);
  for (std::int64_t row = 0; row < 2 * kPerSequence; ++row) expect_row(reader, row);
}

TEST(TraceWindows, ThePiecesOfAVocabularyAreFoundByTheirText) {
  const fixture::TempDir folder;
  TraceMeta meta = plain_meta();
  meta.pieces = {"a", "", "<eos>", "b", "<eos>", "abc", "d", "e", "f", "g", "<m>"};
  TraceWriter(folder.file("t.h5"), meta).finish();
  const TraceReader reader(folder.file("t.h5"));
  const std::vector<std::string_view> wanted{"<eos>", "abc", "none"};
  EXPECT_EQ(reader.tokens_of_pieces(wanted), (std::vector<std::int64_t>{2, 4, 5}));
}

}  // namespace
}  // namespace blockscope
