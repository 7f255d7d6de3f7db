// Mistakes in the parts of a tokenizer.json that come from SentencePiece: Unigram models, byte
// fallback, Metaspace, and their decoders. Its ids and texts: test_tokenizer.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "decode_record/base/error.h"
#include "probe/text/tokenizer.h"

namespace blockscope {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json smallest() {
  return json::parse(R"({
    "version": "1.0", "normalizer": null, "post_processor": null,
    "added_tokens": [{"id": 4, "content": "<e>", "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"},
    "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    "model": {"type": "Unigram", "unk_id": null, "byte_fallback": false,
              "vocab": [["a", -1.0], ["ba", -2.0], ["b", -9.0], ["c", -1], ["<e>", 0.0]]}})");
}

std::string message_after(const std::function<void(json&)>& change) {
  json document = smallest();
  change(document);
  try {
    Tokenizer::from_json(document.dump(), "tokenizer.json");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SentencePieceFile, MinimalFileWorks) {
  const Tokenizer tokenizer = Tokenizer::from_json(smallest().dump(), "tokenizer.json");
  EXPECT_THAT(tokenizer.encode("bab<e>ca"), ElementsAre(1, 2, 4, 3, 0));
}

TEST(SentencePieceFile, ATextThatNeedsAnUnknownTokenIsRefusedIfThereIsNone) {
  json document = smallest();
  const Tokenizer unigram = Tokenizer::from_json(document.dump(), "tokenizer.json");
  EXPECT_THROW(unigram.encode("ax"), CheckpointError);
  document["model"] = json::parse(
      R"({"type": "BPE", "unk_token": "<u>", "vocab": {"a": 0, "<e>": 4}, "merges": []})");
  const Tokenizer bpe = Tokenizer::from_json(document.dump(), "tokenizer.json");
  EXPECT_THROW(bpe.encode("ax"), CheckpointError);
}

TEST(SentencePieceFile, NamesKeyAndValueOfEveryMistake) {
  const std::pair<std::string, std::function<void(json&)>> cases[] = {
      {"key pre_tokenizer.replacement: expected one character, got \"__\"",
       [](json& d) { d["pre_tokenizer"]["replacement"] = "__"; }},
      {"key pre_tokenizer.prepend_scheme: expected always, first or never, got \"last\"",
       [](json& d) { d["pre_tokenizer"]["prepend_scheme"] = "last"; }},
      {"key pre_tokenizer.split: expected true or false, got 1",
       [](json& d) { d["pre_tokenizer"]["split"] = 1; }},
      {"key pre_tokenizer.add_prefix_space: expected true, as prepend_scheme says",
       [](json& d) {
         d["pre_tokenizer"]["prepend_scheme"] = "always";
         d["pre_tokenizer"]["add_prefix_space"] = false;
       }},
      {"key normalizer: expected null together with prepend_scheme \"first\"",
       [](json& d) {
         d["pre_tokenizer"]["prepend_scheme"] = "first";
         d["normalizer"] = {{"type", "NFC"}};
       }},
      {"key pre_tokenizer.pretokenizers[1].prepend_scheme: expected always or never",
       [](json& d) {
         d["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
             {"type": "Digits", "individual_digits": true},
             {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]})");
       }},
      {"key decoder.content: expected one character, got \"ab\"",
       [](json& d) { d["decoder"]["content"] = "ab"; }},
      {"key decoder.start: expected an integer from 0",
       [](json& d) { d["decoder"]["start"] = -1; }},
      {"key decoder.type: expected one of ByteLevel, ByteFallback",
       [](json& d) { d["decoder"]["type"] = "CTC"; }},
      {"key model.byte_fallback: expected true or false, got 1",
       [](json& d) { d["model"]["byte_fallback"] = 1; }},
      {"key model.vocab: expected a list, got an object",
       [](json& d) { d["model"]["vocab"] = json::object(); }},
      {"key model.vocab: expected at least one token",
       [](json& d) { d["model"]["vocab"] = json::array(); }},
      {"key model.vocab[1]: expected [piece, score]",
       [](json& d) {
         d["model"]["vocab"][1] = json::array({"ba", "-2"});
       }},
      {"key model.vocab[0]: expected a piece that is not empty",
       [](json& d) { d["model"]["vocab"][0][0] = ""; }},
      {"key model.vocab[2]: expected a piece of its own, but \"a\" has id 0",
       [](json& d) { d["model"]["vocab"][2][0] = "a"; }},
      {"key model.unk_id: expected an integer from 0 to 4, got 5",
       [](json& d) { d["model"]["unk_id"] = 5; }},
      {"key model.alpha: expected null, got 0.1", [](json& d) { d["model"]["alpha"] = 0.1; }},
  };
  for (const auto& [message, change] : cases) {
    EXPECT_THAT(message_after(change), HasSubstr("tokenizer.json: " + message));
  }
}

}  // namespace
}  // namespace blockscope
