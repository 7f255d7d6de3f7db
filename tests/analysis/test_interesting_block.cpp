// The block and step that a picture of a trace starts with.
#include "analysis/pass/interesting_block.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/write/trace_writer.h"
#include "tests/analysis/trace_maker.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

constexpr std::int64_t kEnd = 9;
constexpr std::int64_t kMask = 10;

/// The tokens that each step of a block decides, one after the other from its first position on.
struct Block {
  std::vector<std::vector<std::int64_t>> steps;
  bool recorded = true;
};

/// One sequence for each list of blocks of 4 positions.
class WrittenBlocks {
 public:
  explicit WrittenBlocks(const std::vector<std::vector<Block>>& sequences) {
    TraceMeta meta;
    meta.num_layers = meta.num_heads = meta.num_kv_heads = 1;
    meta.head_dim = meta.hidden_size = 2;
    meta.vocab_size = 11;
    meta.mask_token_id = kMask;
    meta.softmax_scale = 1.0;
    meta.block_length = 4;
    meta.has_revocations = true;
    meta.level = RecordLevel::trajectory;
    meta.record_everything();
    meta.run_json = R"({"version":"test","stop_ids":[9]})";
    TraceWriter writer(folder_.file("t.h5"), meta);
    for (const std::vector<Block>& blocks : sequences) {
      SequenceStart start;
      start.prompt = {1, 2};
      start.gen_length = 4 * std::ssize(blocks);
      const std::int64_t sequence = writer.begin_sequence(std::move(start));
      for (std::size_t b = 0; b < blocks.size(); ++b) {
        add(writer, sequence, static_cast<std::int64_t>(b), blocks[b]);
      }
      writer.end_sequence(sequence, {});
    }
    writer.finish();
  }

  PlaceToSee place() const {
    const TraceReader trace(folder_.file("t.h5"));
    return most_to_see(trace, list_blocks(trace));
  }

 private:
  void add(TraceWriter& writer, std::int64_t sequence, std::int64_t number, const Block& block) {
    std::int64_t position = 4 * number;
    for (std::size_t s = 0; s < block.steps.size(); ++s) {
      TraceRow row;
      row.sequence = sequence;
      row.pass = pass_++;
      row.kind = PassKind::denoise;
      row.block = number;
      row.block_start = 2 + 4 * number;
      row.step = static_cast<std::int64_t>(s) + 1;
      row.masks_left = 4 * (number + 1) - position;
      row.recorded = block.recorded;
      std::vector<std::int64_t> positions;
      for (std::size_t i = 0; i < block.steps[s].size(); ++i) positions.push_back(position++);
      if (!positions.empty()) {
        row.delta =
            make_transfer(positions, block.steps[s], std::vector<float>(positions.size(), 0.5F));
      }
      writer.append_row(std::move(row));
    }
  }

  fixture::TempDir folder_;
  std::int64_t pass_ = 0;
};

const Block kText{{{1}, {2}, {3}, {4}}};
const Block kAnswerAndEnds{{{1}, {2}, {kEnd}, {kEnd}}};
const Block kOnlyEnds{{{kEnd}, {kEnd}, {kEnd}, {kEnd}}};

TEST(MostToSee, IsTheBlockWithTheMostText) {
  EXPECT_EQ(WrittenBlocks({{kAnswerAndEnds, kOnlyEnds}, {kOnlyEnds, kText}}).place().block, 3U);
  EXPECT_EQ(WrittenBlocks({{kOnlyEnds, kAnswerAndEnds}}).place().block, 1U);
}

TEST(MostToSee, OfEqualBlocksIsTheOneWithMoreStepsAndThenTheFirst) {
  const Block quick{{{1, 2}, {3, 4}}};
  EXPECT_EQ(WrittenBlocks({{quick, kText, kText}}).place().block, 1U);
  EXPECT_EQ(WrittenBlocks({{kOnlyEnds, kOnlyEnds}}).place().block, 0U);
}

TEST(MostToSee, MasksAtTheEndOfACutBlockAreNoText) {
  const Block cut{{{1}, {2}, {}, {}, {}, {}}};
  EXPECT_EQ(WrittenBlocks({{cut}, {kText}}).place().block, 1U);
}

TEST(MostToSee, ABlockWithoutRecordedStepsComesLast) {
  Block unrecorded = kText;
  unrecorded.recorded = false;
  EXPECT_EQ(WrittenBlocks({{unrecorded, kAnswerAndEnds}}).place().block, 1U);
  const PlaceToSee none = WrittenBlocks({{unrecorded}}).place();
  EXPECT_EQ(none.block, 0U);
  EXPECT_EQ(none.step, 0U);
}

TEST(MostToSee, TheStepHasTextAndAStepAfterIt) {
  EXPECT_EQ(WrittenBlocks({{kText}}).place().step, 2U);  // 4, 3, 2, 1 masks
  EXPECT_EQ(WrittenBlocks({{Block{{{1, 2, 3}, {4}}}}}).place().step, 0U);
  EXPECT_EQ(WrittenBlocks({{Block{{{1, 2, 3, 4}}}}}).place().step, 0U);
}

TEST(MostToSee, OfATraceWithoutBlocksIsNothing) {
  const PlaceToSee place = WrittenBlocks({}).place();
  EXPECT_EQ(place.block, 0U);
  EXPECT_EQ(place.step, 0U);
}

TEST(MostToSee, LooksAtTheFirstBlocksOfALongTrace) {
  std::vector<std::vector<Block>> sequences(300, {kAnswerAndEnds});
  sequences[255] = {kText};
  EXPECT_EQ(WrittenBlocks(sequences).place().block, 255U);
  sequences[255] = {kAnswerAndEnds};
  sequences[256] = {kText};
  EXPECT_EQ(WrittenBlocks(sequences).place().block, 0U);
}

}  // namespace
}  // namespace blockscope
