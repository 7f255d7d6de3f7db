// The reader of rounds that another engine dumped: what it makes of a file, and where it says it
// lies. Longer than other tests, because each refusal is one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/interchange/import_rounds.h"

namespace blockscope {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json header() {
  return {{"format", "blockscope-rounds"},
          {"format_version", 1},
          {"engine", "vLLM"},
          {"vocab_size", 50},
          {"block_size", 4},
          {"mask_token_id", 49}};
}

/// A prompt of two tokens, then rounds that accept two of three, none of three, and are not
/// drafted.
std::vector<json> lines() {
  return {header(),
          {{"sequence", "r-1"}, {"prompt_ids", {1, 2}}},
          {{"sequence", "r-1"}, {"token", 5}, {"drafted", {6, 7, 8}}, {"accepted", 2}, {"next", 9}},
          {{"sequence", "r-1"}, {"drafted", {1, 2, 3}}, {"target", {4, 2, 3, 5}}},
          {{"sequence", "r-1"}, {"drafted", json::array()}, {"next", 11}}};
}

std::string text_of(const std::vector<json>& all) {
  std::string text;
  for (const json& line : all) text += line.dump() + "\n";
  return text;
}

ImportedRounds parse(const std::vector<json>& all, const ImportFacts& facts = {}) {
  return parse_rounds(text_of(all), "in.jsonl", facts);
}

std::string refusal_of(const std::string& text, const ImportFacts& facts = {}) {
  try {
    parse_rounds(text, "in.jsonl", facts);
  } catch (const TrajectoryError& error) {
    return error.what();
  }
  return "taken";
}

/// The lines with one of them changed.
std::string refusal(std::size_t line, const char* member, const json& value) {
  std::vector<json> all = lines();
  all.at(line)[member] = value;
  return refusal_of(text_of(all));
}

TEST(ImportRounds, FillsInWhatTheLinesLeaveOut) {
  const ImportedRounds run = parse(lines());
  EXPECT_EQ(run.engine, "vLLM");
  EXPECT_EQ(run.block_length, 4);
  EXPECT_EQ(run.mask_token_id, 49);
  ASSERT_EQ(run.sequences.size(), 1U);
  const DraftedSequence& sequence = run.sequences[0];
  EXPECT_EQ(sequence.start.name, "r-1");
  EXPECT_EQ(sequence.first_token, 5);
  EXPECT_EQ(sequence.start.gen_length, 6) << "5, 6, 7, 9, 4, 11";
  EXPECT_EQ(sequence.end.reason, FinishReason::length);
  ASSERT_EQ(sequence.rounds.size(), 3U);
  EXPECT_EQ(sequence.rounds[0].position, 2);
  EXPECT_THAT(sequence.rounds[0].target, ElementsAre(6, 7, 9)) << "what was accepted, then next";
  EXPECT_EQ(sequence.rounds[1].position, 5);
  EXPECT_EQ(sequence.rounds[1].token, 9);
  EXPECT_EQ(sequence.rounds[1].accepted, 0);
  EXPECT_EQ(sequence.rounds[1].next, 4);
  EXPECT_THAT(sequence.rounds[1].target, ElementsAre(4, 2, 3));
  EXPECT_TRUE(sequence.rounds[1].values[0].empty());
  EXPECT_EQ(sequence.rounds[2].position, 6);
  EXPECT_EQ(sequence.rounds[2].token, 4);
  EXPECT_THAT(sequence.rounds[2].drafted, IsEmpty());
  EXPECT_EQ(sequence.rounds[2].next, 11);
  EXPECT_THAT(run.notes, IsEmpty());
}

TEST(ImportRounds, TheNextRoundTellsTheTokenBeforeIt) {
  std::vector<json> all = lines();
  all[2].erase("next");
  EXPECT_THAT(
      refusal_of(text_of(all)),
      HasSubstr("in.jsonl:4: file: token: expected the certain token, because no earlier line"));
  all[3]["token"] = 9;
  const ImportedRounds run = parse(all);
  EXPECT_EQ(run.sequences[0].rounds[0].next, 9);
  all[3].erase("target");
  all[3]["accepted"] = 0;  // and the next token is not known
  all[4]["token"] = 3;
  EXPECT_EQ(parse(all).sequences[0].rounds[1].next, 3);
}

TEST(ImportRounds, RejectedDraftsNeedNotBeKnown) {
  std::vector<json> all = lines();
  all[2]["drafted"] = {6, 7, nullptr};
  EXPECT_THAT(parse(all).sequences[0].rounds[0].drafted, ElementsAre(6, 7, kUnknown));
  all[2]["drafted"] = {6, nullptr, 8};
  EXPECT_THAT(
      refusal_of(text_of(all)),
      HasSubstr("in.jsonl:3: drafted[1]: expected a token, because it was accepted, got null"));
  all = lines();
  all[3]["drafted"] = {nullptr, 2, 3};
  EXPECT_THAT(refusal_of(text_of(all)), HasSubstr("accepted: expected a number"));
}

TEST(ImportRounds, KeepsRanksProbabilitiesAndTimes) {
  std::vector<json> all = lines();
  all[2]["target_rank_under_draft"] = {0, nullptr, 3};
  all[2]["draft_entropy"] = {2.5, 0, nullptr};
  all[2]["next_confidence"] = 0.25;
  all[2]["target_ns"] = 77;
  const ImportedRounds run = parse(all);
  const RoundRecord& round = run.sequences[0].rounds[0];
  EXPECT_THAT(round.ranks[0], ElementsAre(0, kUnknown, 3));
  EXPECT_EQ(round.values[3][0], 2.5F);
  EXPECT_TRUE(std::isnan(round.values[3][2]));
  EXPECT_EQ(round.next_confidence, 0.25F);
  EXPECT_EQ(round.draft_ns, 0);
  EXPECT_EQ(round.target_ns, 77);
}

/// The lines, whose draft has a selector that chose from two candidates in the first round.
std::vector<json> lines_of_selector() {
  std::vector<json> all = lines();
  all[0]["draft_candidates"] = 2;
  all[2]["candidate_token"] = {{6, 1}, nullptr, {3, 8}};
  all[2]["candidate_score"] = {{-1.5, nullptr}, nullptr, {2, 3}};
  return all;
}

TEST(ImportRounds, KeepsWhatTheSelectorChoseFrom) {
  const ImportedRounds run = parse(lines_of_selector());
  EXPECT_EQ(run.draft_candidates, 2);
  const RoundCandidates& known = run.sequences[0].rounds[0].candidates;
  EXPECT_THAT(known.tokens, ElementsAre(6, 1, kUnknown, kUnknown, 3, 8));
  EXPECT_THAT(known.probabilities, IsEmpty());
  ASSERT_EQ(known.scores.size(), 6U);
  EXPECT_EQ(known.scores[0], -1.5F);
  for (const std::size_t missing : {1U, 2U, 3U}) EXPECT_TRUE(std::isnan(known.scores[missing]));
  EXPECT_EQ(known.scores[5], 3.0F);
  EXPECT_EQ(known.find(0, 6, 2), 0);
  EXPECT_EQ(known.find(2, 8, 2), 1);
  EXPECT_EQ(known.find(2, 6, 2), kUnknown) << "a candidate of another position";
  EXPECT_EQ(known.find(1, kUnknown, 2), kUnknown);
  EXPECT_THAT(run.sequences[0].rounds[1].candidates.tokens, IsEmpty());
  EXPECT_THAT(run.notes, IsEmpty());
}

TEST(ImportRounds, RefusesWhatNoSelectorChoseFrom) {
  const auto with = [](std::size_t line, const char* member, const json& value) {
    std::vector<json> all = lines_of_selector();
    all.at(line)[member] = value;
    return refusal_of(text_of(all));
  };
  EXPECT_THAT(
      refusal(2, "candidate_token", {{6, 1}, {7, 1}, {8, 1}}),
      HasSubstr("in.jsonl:3: candidate_token: expected draft_candidates in the header, got"));
  EXPECT_THAT(with(0, "draft_candidates", 51), HasSubstr("draft_candidates: expected an integer"));
  EXPECT_THAT(with(2, "candidate_token", nullptr),
              HasSubstr("candidate_score: expected candidate_token beside it, got none"));
  EXPECT_THAT(with(2, "candidate_token", {{6, 1}, {7, 1}}),
              HasSubstr("candidate_token: expected an array of 3"));
  EXPECT_THAT(with(2, "candidate_token", {{6, 1}, {7}, {8, 1}}),
              HasSubstr("candidate_token[1]: expected an array of 2"));
  EXPECT_THAT(with(2, "candidate_token", {{6, 1}, {7, 50}, {8, 1}}),
              HasSubstr("candidate_token[1][1]: expected an integer from 0 to 49, got 50"));
  EXPECT_THAT(with(2, "candidate_token", {{6, 1}, {1, 2}, {8, 1}}),
              HasSubstr("candidate_token[1]: expected the drafted token 7 among the candidates"));
  EXPECT_THAT(with(2, "candidate_probability", {{0.5, 2}, nullptr, nullptr}),
              HasSubstr("candidate_probability[0][1]: expected a number"));
  EXPECT_THAT(with(2, "candidate_probability", {{0.2, 0.7}, nullptr, nullptr}),
              HasSubstr("expected the candidates by falling probability, got 0.7 after 0.2"));
  EXPECT_THAT(with(2, "candidate_token", {{6, 6}, nullptr, {3, 8}}),
              HasSubstr("candidate_token[0][1]: expected a token that is not a candidate yet"));
  EXPECT_THAT(with(2, "candidate_score", {nullptr, {1, 2}, nullptr}),
              HasSubstr("candidate_score[1]: expected null, because candidate_token has none"));
}

TEST(ImportRounds, SequencesMayComeInEachOther) {
  std::vector<json> all = lines();
  all.insert(all.begin() + 3, json({{"sequence", 1}, {"prompt_ids", {3}}, {"first_token", 8}}));
  all.insert(all.begin() + 5,
             json({{"sequence", 1}, {"drafted", {8}}, {"accepted", 0}, {"next", 1}}));
  all.push_back({{"sequence", 1}, {"finish_reason", "stop"}, {"text", "ha"}});
  const ImportedRounds run = parse(all);
  ASSERT_EQ(run.sequences.size(), 2U);
  EXPECT_EQ(run.sequences[0].rounds.size(), 3U);
  EXPECT_EQ(run.sequences[1].start.name, "");
  EXPECT_EQ(run.sequences[1].rounds[0].token, 8);
  EXPECT_EQ(run.sequences[1].end.reason, FinishReason::stop);
  EXPECT_EQ(run.sequences[1].end.text, "ha");
  all.push_back({{"sequence", 1}, {"drafted", json::array()}, {"next", 1}});
  EXPECT_THAT(refusal_of(text_of(all)),
              HasSubstr("in.jsonl:9: sequence: expected a sequence whose end"));
}

TEST(ImportRounds, LeavesOutRoundsBehindTheEnd) {
  std::vector<json> all = lines();
  all[1]["gen_length"] = 4;  // 5, 6, 7, 9: the second round begins at the fourth
  ImportedRounds run = parse(all);
  EXPECT_EQ(run.sequences[0].rounds.size(), 2U);
  EXPECT_EQ(run.sequences[0].start.gen_length, 4);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("after an answer's end")));
  all[1]["gen_length"] = 100;
  all[0]["stop_token_ids"] = {7};
  run = parse(all);
  EXPECT_EQ(run.sequences[0].rounds.size(), 1U);
  EXPECT_EQ(run.sequences[0].end.reason, FinishReason::stop);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("after an answer's end")));
  all[0]["stop_token_ids"] = {8};  // drafted, and not accepted
  EXPECT_EQ(parse(all).sequences[0].rounds.size(), 3U);
  all[0]["stop_token_ids"] = {7};  // accepted as the third token, after an answer of two
  all[1]["gen_length"] = 2;
  EXPECT_EQ(parse(all).sequences[0].end.reason, FinishReason::length);
  all[1]["gen_length"] = 3;
  EXPECT_EQ(parse(all).sequences[0].end.reason, FinishReason::stop);
  all[1]["gen_length"] = 100;
  all[0]["stop_token_ids"] = {5};  // the prefill's token: nothing is drafted then
  EXPECT_THAT(parse(all).sequences[0].rounds, IsEmpty());
  EXPECT_EQ(parse(all).sequences[0].first_token, 5);
}

TEST(ImportRounds, SaysWhereAFileLies) {
  EXPECT_EQ(refusal(3, "position", 6),
            "in.jsonl:4: position: expected 5, where the round before it ended, got 6");
  EXPECT_EQ(refusal(2, "position", 3),
            "in.jsonl:3: position: expected 2, where the answer begins, got 3");
  EXPECT_THAT(refusal(3, "round", 2), HasSubstr("in.jsonl:4: round: expected 1, the sequence's"));
  EXPECT_THAT(refusal(3, "token", 8), HasSubstr("in.jsonl:4: token: expected 9, the token that"));
  EXPECT_THAT(refusal(2, "drafted", {6, 7, 50}),
              HasSubstr("in.jsonl:3: drafted[2]: expected an integer from 0 to 49, got 50"));
  EXPECT_THAT(refusal(2, "drafted", {6, -1}), HasSubstr("drafted[1]: expected an integer from 0"));
  EXPECT_THAT(refusal(2, "drafted", {1, 2, 3, 4}), HasSubstr("drafted: expected at most 3 tokens"));
  EXPECT_THAT(refusal(2, "accepted", 4), HasSubstr("accepted: expected an integer from 0 to 3"));
  EXPECT_THAT(refusal(3, "accepted", 1),
              HasSubstr("accepted: expected at most 0, because the target decided on 4 there and "
                        "the draft on 1"));
  EXPECT_THAT(refusal(3, "next", 6), HasSubstr("in.jsonl:4: next: expected 4, as target has"));
  EXPECT_THAT(refusal(3, "target", {4, 2}), HasSubstr("target: expected an array of 3, or of 4"));
  EXPECT_THAT(refusal(3, "target", {1, nullptr, 3}),
              HasSubstr("accepted: expected a number, because drafted and target do not"));
  EXPECT_THAT(refusal(2, "target_rank_under_draft", {1, 2}),
              HasSubstr("target_rank_under_draft: expected an array of 3"));
  EXPECT_THAT(refusal(2, "target_rank_under_draft", {1, 2, 50}),
              HasSubstr("target_rank_under_draft[2]: expected an"));
  EXPECT_THAT(refusal(2, "confidence", {1, 2, 0}), HasSubstr("confidence[1]: expected a number"));
  EXPECT_THAT(refusal(2, "draft_entropy", {-1, 2, 0}), HasSubstr("draft_entropy[0]: expected"));
  EXPECT_THAT(refusal(2, "draft_ns", -5), HasSubstr("draft_ns: expected an integer from 0"));
  EXPECT_THAT(refusal(2, "sequence", "r-2"), HasSubstr("sequence: expected a sequence whose line"));
  EXPECT_THAT(refusal(2, "sequence", -1), HasSubstr("sequence: expected an integer of at least 0"));
  EXPECT_THAT(refusal(1, "prompt_ids", {50}), HasSubstr("in.jsonl:2: prompt_ids[0]: expected"));
  EXPECT_THAT(refusal(1, "gen_length", 0), HasSubstr("gen_length: expected an integer from 1"));
  EXPECT_THAT(refusal(1, "first_token", 4), HasSubstr("in.jsonl:3: token: expected 4"));
  EXPECT_THAT(refusal(0, "format_version", 2), HasSubstr("in.jsonl:1: format_version: expected 1"));
  EXPECT_THAT(refusal(0, "block_size", 70000), HasSubstr("block_size: expected an integer from 1"));
  EXPECT_THAT(refusal(0, "mask_token_id", -1), HasSubstr("mask_token_id: expected an integer"));
}

TEST(ImportRounds, RefusesLinesThatAreNone) {
  const auto with = [](const std::string& line) { return refusal_of(text_of(lines()) + line); };
  EXPECT_THAT(with("3"), HasSubstr("in.jsonl:6: file: expected an object, got 3"));
  EXPECT_THAT(with("{"), HasSubstr("in.jsonl:6: file: expected JSON, got text that ends"));
  EXPECT_THAT(with("{} {}"), HasSubstr("in.jsonl:6: byte 4"));
  EXPECT_THAT(with("{}"), HasSubstr("expected a sequence (prompt_ids), a round (drafted)"));
  EXPECT_THAT(with(header().dump()), HasSubstr("format: expected one header, got another"));
  EXPECT_THAT(with(lines()[1].dump()), HasSubstr("sequence: expected a sequence that has no line"));
  EXPECT_EQ(with(" \r\n\n"), "taken");
  EXPECT_THAT(refusal_of("\n\n"), HasSubstr("expected JSON lines"));
  EXPECT_THAT(refusal_of(header().dump()), HasSubstr("expected a sequence (prompt_ids) after the"));
  EXPECT_THAT(refusal_of(R"({"sequence":1})"), HasSubstr("in.jsonl:1: format: expected a value"));
}

TEST(ImportRounds, AsksForWhatTheHeaderDoesNotSay) {
  std::vector<json> all = lines();
  all[0]["mask_token_id"] = nullptr;
  EXPECT_EQ(parse(all).mask_token_id, -1) << "nobody has to know it";
  all[0].erase("vocab_size");
  EXPECT_THROW(parse(all), UsageError);
  ImportFacts facts;
  facts.vocab_size = 50;
  facts.block_length = 5;
  EXPECT_THAT(refusal_of(text_of(all), facts), HasSubstr("block_size: expected 5, as --block"));
  all[0].erase("block_size");
  EXPECT_EQ(parse(all, facts).block_length, 5);
  facts.block_length = kLargestLength;
  EXPECT_THROW(parse(all, facts), UsageError);
}

TEST(ImportRounds, FewBytesDoNotBecomeManyRows) {
  std::vector<json> all = lines();
  all[0]["block_size"] = 65536;
  for (int i = 0; i < 600; ++i) {
    all.push_back({{"sequence", "r-1"}, {"drafted", json::array()}, {"next", 1}});
  }
  EXPECT_THAT(refusal_of(text_of(all)), HasSubstr("values of prompts, answers and blocks"));
  all = {header(), {{"sequence", 1}, {"prompt_ids", {1}}, {"first_token", 2}}};
  all[0]["vocab_size"] = all[0]["block_size"] = 65536;
  all[0]["draft_candidates"] = 1024;
  EXPECT_THAT(refusal_of(text_of(all)), HasSubstr("values of prompts, answers and blocks"));
  all = lines();
  all[1]["gen_length"] = kLargestLength - 2;
  EXPECT_EQ(refusal_of(text_of(all)), "taken");
  for (int i = 0; i < 100; ++i) {
    all.push_back({{"sequence", "r-1"}, {"drafted", json::array()}, {"next", 1}});
  }
  EXPECT_THAT(refusal_of(text_of(all)), HasSubstr("expected fewer rounds of an answer"));
}

TEST(ImportRounds, NamesMembersThatItDoesNotKeep) {
  std::vector<json> all = lines();
  all[2]["acepted"] = 2;
  for (int i = 0; i < 20; ++i) all[3]["m" + std::to_string(i)] = i;
  const ImportedRounds run = parse(all);
  EXPECT_EQ(run.notes.front(), "acepted: not kept");
  EXPECT_EQ(run.notes.size(), 8U);
}

TEST(IsRounds, TellsTheFormsApart) {
  EXPECT_TRUE(is_rounds(text_of(lines())));
  EXPECT_TRUE(is_rounds(header().dump())) << "a header without anything";
  EXPECT_TRUE(is_rounds("{\"sequence\":1}\n{\"sequence\":2}\n")) << "and no header";
  EXPECT_FALSE(is_rounds("{\"initial_frame\":{}}\n"));
  EXPECT_FALSE(is_rounds("{\"format\":\"blockscope-frames\",\"sequences\":[\n{}\n]}\n"));
  EXPECT_FALSE(is_rounds("{\n\"format\": \"blockscope-rounds\"}"));
  EXPECT_FALSE(is_rounds("[\n{}\n]"));
  EXPECT_FALSE(is_rounds(""));
}

}  // namespace
}  // namespace blockscope
