// The readers of other tools' trajectories: the result for a file, and the place of an error in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/interchange/import_frames.h"
#include "decode_record/interchange/import_klass.h"
#include "decode_record/json/json_document.h"

namespace blockscope {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kVocab = 50;
constexpr std::int64_t kImportMask = 49;

ImportFacts facts() {
  ImportFacts result;
  result.vocab_size = kVocab;
  result.mask_token_id = kImportMask;
  return result;
}

json token(int position, int id, const json& confidence, const json& kl = "inf") {
  return {
      {"position", position}, {"token_id", id}, {"confidence", confidence}, {"kl_divergence", kl}};
}

/// The prompt has 3 tokens, the block 2: one token a step, the later position first.
json klass() {
  json late = token(4, 8, 0.5, 0.25);
  json early = token(3, 7, 0.75);
  json steps = json::array();
  const auto step = [&](int number, json decoded, const json& all) {
    decoded["decoded_token"] = "w";
    steps.push_back({{"step", number},
                     {"decoded_text", "text"},
                     {"decoded_tokens_num", 1},
                     {"decoded_tokens", json::array({decoded})},
                     {"all_tokens", all}});
  };
  step(1, late, json::array({token(3, 6, 0.125), late}));
  step(2, early, json::array({early}));
  return steps;
}

/// Four positions, two of them decided, then one taken back and another one decided.
json frames() {
  const auto delta = [](const json& index, const json& tokens, const json& confidence) {
    return json{{"transfer_index", index}, {"decoded_tokens", tokens}, {"confidence", confidence}};
  };
  return {{"initial_frame",
           {{"prompts", {1, 2}},
            {"generated_tokens", {kImportMask, kImportMask, kImportMask, kImportMask}},
            {"confidence", nullptr},
            {"steps", {-1, -1, -1, -1}}}},
          {"deltas",
           {delta({2, 0}, {5, 6, 7, 8}, {0.5, 0.25, 0.75, 0.125}),
            delta({0, 1}, {kImportMask, 9, -100, 8}, {1.0, 0.5, nullptr, 0.25})}}};
}

template <typename Parse>
std::string refusal(const Parse& parse, const json& document, const ImportFacts& known = facts()) {
  try {
    parse(document.dump(), "in.json", known);
  } catch (const TrajectoryError& error) {
    return error.what();
  }
  return "taken";
}

TEST(ImportKlass, FindsPromptBlockAndSteps) {
  const ImportedTrajectory trajectory = parse_klass(klass().dump(), "in.json", facts());
  EXPECT_EQ(trajectory.block_length, 2);
  ASSERT_EQ(trajectory.sequences.size(), 1u);
  const ImportedSequence& sequence = trajectory.sequences[0];
  EXPECT_THAT(sequence.start.prompt, ElementsAre(kImportMask, kImportMask, kImportMask));
  EXPECT_EQ(sequence.start.gen_length, 2);
  EXPECT_EQ(sequence.end.text, "text");
  ASSERT_EQ(sequence.steps.size(), 2u);
  EXPECT_THAT(sequence.steps[0].delta.transfer_index, ElementsAre(1));
  EXPECT_THAT(sequence.steps[0].delta.transfer_step, ElementsAre(0));
  EXPECT_THAT(sequence.steps[0].delta.decoded_tokens, ElementsAre(8));
  EXPECT_THAT(sequence.steps[1].delta.transfer_step, ElementsAre(1));
  ASSERT_EQ(sequence.steps[0].best.size(), 2u);
  EXPECT_EQ(sequence.steps[0].best[0].token, 6);
  EXPECT_EQ(sequence.steps[0].best[0].confidence, 0.125F);
  EXPECT_EQ(json::parse(trajectory.kept)["steps"][0]["kl_divergence"], json({"inf", 0.25}));
}

TEST(ImportKlass, BlocksOfSdarBeginInThePrompt) {
  ImportFacts known = facts();
  known.block_causal = true;
  known.block_length = 5;  // positions 3 and 4 are the end of block 0
  const ImportedTrajectory trajectory = parse_klass(klass().dump(), "in.json", known);
  EXPECT_EQ(trajectory.sequences[0].steps[1].block, 0);
  known.block_length = 4;
  EXPECT_THAT(refusal(parse_klass, klass(), known), HasSubstr("the 1 masks of a block of 4"));
}

TEST(ImportKlass, SaysWhereAFileLies) {
  json steps = klass();
  steps[1]["decoded_tokens"][0]["token_id"] = kVocab;
  EXPECT_EQ(refusal(parse_klass, steps),
            "in.json: [1].decoded_tokens[0].token_id: expected an integer from 0 to 49, got 50");
  steps = klass();
  steps[1]["step"] = 3;
  EXPECT_THAT(refusal(parse_klass, steps), HasSubstr("[1].step: expected 2, one more"));
  steps = klass();
  steps[1] = steps[0];
  steps[1]["step"] = 2;
  EXPECT_THAT(refusal(parse_klass, steps), HasSubstr("[1].all_tokens: element 1: expected"));
  steps = klass();
  steps[0]["all_tokens"][1]["position"] = steps[0]["all_tokens"][0]["position"];
  EXPECT_THAT(refusal(parse_klass, steps),
              HasSubstr("[0].all_tokens[1].position: expected more than the position before it"));
}

TEST(ImportKlass, AsksForWhatTheFileDoesNotSay) {
  ImportFacts known = facts();
  known.mask_token_id.reset();
  EXPECT_THROW(parse_klass(klass().dump(), "in.json", known), UsageError);
  known = facts();
  known.vocab_size.reset();
  EXPECT_THROW(parse_klass(klass().dump(), "in.json", known), UsageError);
}

TEST(ImportFrames, AMaskOnATokenTakesItBack) {
  const ImportedTrajectory trajectory = parse_frames(frames().dump(), "in.json", facts());
  EXPECT_EQ(trajectory.block_length, 4);
  const ImportedStep& step = trajectory.sequences[0].steps[1];
  EXPECT_THAT(step.delta.decoded_tokens, ElementsAre(kImportMask, 9));
  EXPECT_THAT(step.delta.confidence, ElementsAre(kUntouchedConfidence, 0.5F));
  EXPECT_THAT(step.delta.transfer_step, ElementsAre(kUndecodedStep, 1));
  ASSERT_EQ(step.revoked.size(), 1u);
  EXPECT_EQ(step.revoked[0].position, 0);
  EXPECT_EQ(step.revoked[0].token, 5);
  ASSERT_EQ(step.best.size(), 2u) << "of the masks before the step, positions 1 and 3";
  EXPECT_EQ(step.best[1].token, 8);
}

TEST(ImportFrames, AnEditStatesItsStep) {
  json record = frames();
  json& delta = record["deltas"][1];
  delta["decoded_tokens"][0] = 4;
  delta["confidence"][0] = 0.5;
  delta["extra"] = {{"transfer_step", {1, 1}}};
  const ImportedTrajectory trajectory = parse_frames(record.dump(), "in.json", facts());
  const ImportedStep& step = trajectory.sequences[0].steps[1];
  EXPECT_THAT(step.delta.decoded_tokens, ElementsAre(4, 9));
  EXPECT_TRUE(step.revoked.empty());
  delta["decoded_tokens"][0] = 5;
  EXPECT_THAT(refusal(parse_frames, record), HasSubstr("token 5 at position 0 after the prompt"));
}

TEST(ImportFrames, ATokenOnATokenIsRefused) {
  json record = frames();
  record["deltas"][1]["decoded_tokens"][0] = 4;
  EXPECT_THAT(refusal(parse_frames, record),
              HasSubstr("deltas[1]: token 4 at position 0 after the prompt: expected a mask there, "
                        "got token 5"));
  record["deltas"][1]["decoded_tokens"][0] = kImportMask;
  record["deltas"][1]["confidence"][0] = 0.5;
  EXPECT_THAT(refusal(parse_frames, record), HasSubstr("expected 1 or null, got 0.5"));
}

TEST(ImportFrames, UnknownConfidencesStayUnknown) {
  json record = frames();
  record["deltas"][0].erase("confidence");
  const ImportedTrajectory trajectory = parse_frames(record.dump(), "in.json", facts());
  EXPECT_TRUE(std::isnan(trajectory.sequences[0].steps[0].delta.confidence[0]));
}

TEST(ImportFrames, WhatTheFileAndTheFlagsSayMustAgree) {
  json record = frames();
  record["mask_token_id"] = 3;
  EXPECT_EQ(refusal(parse_frames, record),
            "in.json: mask_token_id: expected 49, as --mask-token-id says, got 3");
  ImportFacts known = facts();
  known.block_length = 2;
  EXPECT_THAT(refusal(parse_frames, frames(), known), HasSubstr("in two blocks of length 2"));
  record = frames();
  record["bidirectional"] = true;
  known = facts();
  known.block_causal = true;
  EXPECT_THAT(refusal(parse_frames, record, known), HasSubstr("as --block-causal says"));
}

TEST(ImportFrames, WhatStandsAroundTheRecordsHoldsForEach) {
  json record = frames();
  record["block_length"] = 4;
  json document = {{"vocab_size", kVocab}, {"mask_token_id", kImportMask}, {"block_length", 4}};
  document["sequences"] = {frames(), record};
  EXPECT_EQ(refusal(parse_frames, document), "taken");
  document["block_length"] = 2;
  EXPECT_EQ(
      refusal(parse_frames, document),
      "in.json: sequences[1].block_length: expected 2, as the file says around its sequences, "
      "got 4");
  document["block_length"] = nullptr;
  EXPECT_EQ(refusal(parse_frames, document), "taken");
  document["sequences"][1]["mask_token_id"] = 3;
  EXPECT_THAT(refusal(parse_frames, document), HasSubstr("[1].mask_token_id: expected 49"));
}

TEST(ImportFrames, WhatIsNotKeptIsSaid) {
  json record = frames();
  record["deltas"][0]["probs"] = json::array();
  record["deltas"][1]["extra"] = {{"num_last_wide_in", 3}};
  const ImportedTrajectory trajectory = parse_frames(record.dump(), "in.json", facts());
  EXPECT_THAT(trajectory.notes, ElementsAre(HasSubstr("probs"), HasSubstr("num_last_wide_in")));
}

TEST(JsonDocument, RefusesWhatCouldHurtItsReader) {
  const auto parse = [](const std::string& text) {
    try {
      parse_document(text, "in.json", 3);
    } catch (const TrajectoryError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  EXPECT_EQ(parse("[[[1]]]"), "taken");
  EXPECT_THAT(parse("[[[[1]]]]"), HasSubstr("at most 3"));
  EXPECT_THAT(parse(std::string(1'000'000, '[')), HasSubstr("at most 3"));
  EXPECT_EQ(parse(R"([{"a":1},{"a":1}])"), "taken");
  EXPECT_THAT(parse(R"({"a":1,"b":{},"a":1})"), HasSubstr("\"a\" twice"));
  EXPECT_THAT(parse("[1"), HasSubstr("ends in the middle"));
  EXPECT_THAT(parse("[NaN]"), HasSubstr("byte 2"));
  EXPECT_THAT(parse(""), HasSubstr("empty file"));
  EXPECT_THAT(parse("[1e999]"), HasSubstr("a double can hold"));
}

}  // namespace
}  // namespace blockscope
