// Two traces written by hand: which sequences pair, where their tokens part, what B - A is.
#include "analysis/metrics/trace_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Written {
  std::string name;
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> tokens;  ///< one block of 4, a token a step
  std::vector<std::int64_t> order = {0, 1, 2, 3};
};

TraceMeta meta() {
  TraceMeta meta = fixture::small_meta(RecordLevel::trajectory, ArrayType::bf16);
  meta.has_cache = false;  // its rows say nothing of one
  return meta;
}

std::string write(const std::string& path, const TraceMeta& meta,
                  const std::vector<Written>& sequences) {
  TraceWriter writer(path, meta);
  std::int64_t pass = 0;
  for (const Written& written : sequences) {
    SequenceStart start;
    start.name = written.name;
    start.prompt = written.prompt;
    start.gen_length = 4;
    const auto prompt = static_cast<std::int64_t>(start.prompt.size());
    const std::int64_t index = writer.begin_sequence(std::move(start));
    for (std::size_t i = 0; i < written.tokens.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i);
      TraceRow row = fixture::denoise_row(meta, index, pass++, 0, step);
      row.block_start = row.context_length = prompt;
      row.masks_left = 4 - step;
      row.changed = step == 0 ? 0 : 1;
      row.delta = make_transfer({written.order[i]}, {written.tokens[i]}, {0.5F});
      writer.append_row(std::move(row));
    }
    writer.end_sequence(index, {FinishReason::length, "", 1.0F});
  }
  writer.finish();
  return path;
}

class Comparison : public ::testing::Test {
 protected:
  TraceReader trace(const char* name, const std::vector<Written>& sequences,
                    const TraceMeta& with = meta()) {
    return TraceReader(write(folder_.file(name), with, sequences));
  }
  fixture::TempDir folder_;
};

TEST_F(Comparison, PairsByPromptThenByNameAndTellsTheRest) {
  const TraceReader a = trace("a.h5", {{"one", {1, 2}, {5, 6}},
                                       {"two", {3}, {5}},
                                       {"three", {4}, {5}},
                                       {"one again", {1, 2}, {7}}});
  const TraceReader b = trace(
      "b.h5",
      {{"two", {9, 9}, {5}}, {"first", {1, 2}, {5}}, {"second", {1, 2}, {5}}, {"four", {8}, {5}}});
  const SequenceMatches matches = match_sequences(a, b);
  ASSERT_EQ(matches.pairs.size(), 3U);
  EXPECT_EQ(matches.pairs[0].b, 1);
  EXPECT_TRUE(matches.pairs[0].same_prompt);
  EXPECT_EQ(matches.pairs[1].b, 0);
  EXPECT_FALSE(matches.pairs[1].same_prompt);
  EXPECT_EQ(matches.pairs[2].a, 3);
  EXPECT_EQ(matches.pairs[2].b, 2);
  EXPECT_THAT(matches.only_a, ElementsAre(2));
  EXPECT_THAT(matches.only_b, ElementsAre(3));
}

TEST_F(Comparison, FindsTheStepAndThePositionWhereTokensPart) {
  const TraceReader a = trace("a.h5", {{"s", {1}, {10, 11, 12, 13}}});
  const TraceReader b = trace("b.h5", {{"s", {1}, {10, 11, 77}, {0, 2, 1}}});
  const TokenComparison tokens = compare_tokens(a, 0, b, 0);
  EXPECT_EQ(tokens.positions, 4);
  EXPECT_EQ(tokens.steps_a, 4);
  EXPECT_EQ(tokens.steps_b, 3);
  EXPECT_EQ(tokens.first_step, 1);      // A sets position 1, B position 2
  EXPECT_EQ(tokens.first_position, 1);  // 11 and 77
  EXPECT_EQ(tokens.decided_in_both, 3);
  EXPECT_EQ(tokens.equal, 1);
  EXPECT_DOUBLE_EQ(tokens.share_equal(), 1.0 / 3.0);
  const auto row = [&](std::int64_t step) {
    return std::vector<TokenState>{tokens.state(step, 0), tokens.state(step, 1),
                                   tokens.state(step, 2), tokens.state(step, 3)};
  };
  using enum TokenState;
  EXPECT_THAT(row(0), ElementsAre(equal, masked, masked, masked));
  EXPECT_THAT(row(1), ElementsAre(equal, only_a, only_b, masked));
  EXPECT_THAT(row(2), ElementsAre(equal, different, different, masked));
  EXPECT_THAT(row(3), ElementsAre(equal, different, different, only_a));
  EXPECT_THAT(tokens.tokens_b, ElementsAre(10, 77, 11, -1));
}

TEST_F(Comparison, ASequenceIsEqualToItself) {
  const TraceReader a = trace("a.h5", {{"s", {1}, {10, 11, 12, 13}}});
  const TokenComparison tokens = compare_tokens(a, 0, a, 0);
  EXPECT_EQ(tokens.first_step, -1);
  EXPECT_EQ(tokens.first_position, -1);
  EXPECT_DOUBLE_EQ(tokens.share_equal(), 1.0);
}

TEST_F(Comparison, OtherVocabulariesAreComparedByPiece) {
  TraceMeta shifted = meta();
  shifted.pieces.insert(shifted.pieces.begin(), "extra");
  shifted.vocab_size = 101;
  shifted.mask_token_id = 100;
  const TraceReader a = trace("a.h5", {{"s", {1}, {10, 11}}});
  const TraceReader b = trace("b.h5", {{"s", {1}, {11, 11}}}, shifted);
  const TokenComparison tokens = compare_tokens(a, 0, b, 0);
  EXPECT_EQ(tokens.state(1, 0), TokenState::equal);
  EXPECT_EQ(tokens.state(1, 1), TokenState::different);
  shifted.pieces.clear();
  const TraceReader none = trace("none.h5", {{"s", {1}, {11}}}, shifted);
  try {
    compare_tokens(a, 0, none, 0);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("vocabulary of 100"));
  }
}

TEST(ShapeDifferences, NameWhatDiffers) {
  TraceMeta a = meta();
  EXPECT_THAT(shape_differences(a, a), IsEmpty());
  TraceMeta b = a;
  b.layers = {0, 1};
  EXPECT_THAT(shape_differences(a, b), ElementsAre("recorded layers: 0,2 in A, 0,1 in B"));
  EXPECT_TRUE(same_architecture(a, b));
  b.num_layers = 5;
  EXPECT_THAT(shape_differences(a, b), ElementsAre("layers of the model: 3 in A, 5 in B"));
  EXPECT_FALSE(same_architecture(a, b));
}

TEST(Difference, IsTakenWhereBothHaveTheCell) {
  const double nan = std::nan("");
  const ResultArray a{"x",
                      "1",
                      "",
                      {{"layer", {0, 1, 2}, {}}, {"head", {4, 7}, {}}},
                      {1, 2, 3, 4, 5, nan},
                      {9, 9, 9, 2, 9, 0}};
  const ResultArray b{
      "x", "1", "", {{"layer", {2, 1}, {}}, {"head", {7, 4}, {}}}, {10, 20, 30, 40}, {5, 5, 5, 5}};
  const ResultArray d = difference(b, a);
  EXPECT_THAT(d.axes[0].index, ElementsAre(1, 2));
  EXPECT_THAT(d.axes[1].index, ElementsAre(4, 7));
  EXPECT_DOUBLE_EQ(d.at({0, 0}), 40 - 3);
  EXPECT_DOUBLE_EQ(d.at({0, 1}), 30 - 4);
  EXPECT_DOUBLE_EQ(d.at({1, 0}), 20 - 5);
  EXPECT_TRUE(std::isnan(d.at({1, 1})));
  EXPECT_THAT(d.terms, ElementsAre(5, 2, 5, 0));
  ResultArray other = b;
  other.axes[1].name = "kv_head";
  EXPECT_THROW(difference(other, a), UsageError);
}

}  // namespace
}  // namespace blockscope
