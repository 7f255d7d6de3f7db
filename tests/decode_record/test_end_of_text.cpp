// Which tokens end a text, and where runs of them are.
#include "decode_record/read/end_of_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/write/trace_writer.h"
#include "tests/decode_record/trace_fixture.h"

namespace blockscope {
namespace {

const EndOfText kEnds(std::set<std::int64_t>{7, 9});

TraceMeta meta_with(const std::string& run_json) {
  TraceMeta meta;
  meta.num_layers = meta.num_heads = meta.num_kv_heads = 1;
  meta.head_dim = meta.hidden_size = 2;
  meta.vocab_size = 5;
  meta.mask_token_id = 4;
  meta.softmax_scale = 1.0;
  meta.block_length = 4;
  meta.record_everything();
  meta.run_json = run_json;
  meta.pieces = {"a", "<|endoftext|>", "end", "</s>", "<mask>"};
  return meta;
}

TEST(EndOfText, AreTheStopTokensOfTheRunAndPiecesWithAUsualName) {
  const fixture::TempDir folder;
  const std::string path = folder.file("t.h5");
  TraceWriter(path, meta_with(R"({"version":"test","stop_ids":[2]})")).finish();
  const TraceReader trace(path);
  EXPECT_EQ(stop_ids(trace), (std::set<std::int64_t>{2}));
  const EndOfText ends(trace);
  for (const std::int64_t token : {1, 2, 3}) EXPECT_TRUE(ends.contains(token)) << token;
  for (const std::int64_t token : {-1, 0, 4, 5}) EXPECT_FALSE(ends.contains(token)) << token;
}

TEST(EndOfText, ARunWithoutStopTokensHasTheNames) {
  const fixture::TempDir folder;
  const std::string path = folder.file("t.h5");
  TraceWriter(path, meta_with(R"({"version":"test"})")).finish();
  const TraceReader trace(path);
  EXPECT_TRUE(stop_ids(trace).empty());
  EXPECT_TRUE(EndOfText(trace).contains(1));
  EXPECT_FALSE(EndOfText(trace).contains(2));
}

TEST(EndOfText, TheRunAtTheEndIsCounted) {
  const auto trailing = [](const std::vector<std::int64_t>& tokens) {
    return trailing_end_of_text(tokens, kEnds);
  };
  EXPECT_EQ(trailing({}), 0U);
  EXPECT_EQ(trailing({7, 1}), 0U);
  EXPECT_EQ(trailing({7, 1, 9}), 1U);
  EXPECT_EQ(trailing({1, 7, 9, 7}), 3U);
  EXPECT_EQ(trailing({7, 9}), 2U);
}

TEST(EndOfText, RunsBeginWithTheirLengthAndSingleTokensAreNone) {
  const std::vector<std::int64_t> tokens{7, 9, 1, 7, 2, 9, 9, 9};
  EXPECT_EQ(end_of_text_runs(tokens, kEnds),
            (std::vector<std::int32_t>{2, -1, 0, 0, 0, 3, -1, -1}));
  EXPECT_TRUE(end_of_text_runs({}, kEnds).empty());
}

TEST(EndOfText, ARunIsShownAsOneMarkAndDots) {
  EXPECT_EQ(end_of_text_label(0, "word"), "word");
  EXPECT_EQ(end_of_text_label(17, "</s>"), "\u27E8end of text \u00D717\u27E9");
  EXPECT_EQ(end_of_text_label(-1, "</s>"), "\u00B7");
}

}  // namespace
}  // namespace blockscope
