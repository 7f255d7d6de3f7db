// Broken and hostile tokenizer files end in a CheckpointError that names the key; and the merging
// of a checkpoint folder's side files follows `transformers`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "decode_record/base/error.h"
#include "probe/text/tokenizer.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json minimal() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 4, "content": "<e>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
              "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}})");
}

std::string error_of(const std::string& text) {
  try {
    Tokenizer::from_json(text, "tokenizer.json");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_after(const std::function<void(json&)>& change) {
  json document = minimal();
  change(document);
  return error_of(document.dump());
}

TEST(TokenizerFile, MinimalFileWorks) {
  const Tokenizer tokenizer = Tokenizer::from_json(minimal().dump(), "tokenizer.json");
  EXPECT_THAT(tokenizer.encode("ab<e> ba"), ElementsAre(2, 4, 3, 1, 0));
  EXPECT_EQ(tokenizer.vocab_size(), 5U);
}

TEST(TokenizerFile, NamesKeyAndValueOfEveryMistake) {
  const std::pair<std::string, std::function<void(json&)>> cases[] = {
      {"key model: expected a value, got nothing", [](json& d) { d.erase("model"); }},
      {"key model: expected an object, got 3", [](json& d) { d["model"] = 3; }},
      {"key model.type: expected BPE or Unigram, got \"WordPiece\"",
       [](json& d) { d["model"]["type"] = "WordPiece"; }},
      {"key model.dropout: expected null, got 0.1", [](json& d) { d["model"]["dropout"] = 0.1; }},
      {"key model.byte_fallback: expected true or false, got \"yes\"",
       [](json& d) { d["model"]["byte_fallback"] = "yes"; }},
      {"key model.end_of_word_suffix: expected null or an empty string",
       [](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }},
      {"key model.vocab: expected a value", [](json& d) { d["model"].erase("vocab"); }},
      {"key model.vocab: expected an object", [](json& d) { d["model"]["vocab"] = json::array(); }},
      {"key model.vocab: expected at least one",
       [](json& d) { d["model"]["vocab"] = json::object(); }},
      {"key model.vocab[\"c\"]: expected an integer from 0 to 4194303, got -1",
       [](json& d) { d["model"]["vocab"]["c"] = -1; }},
      {"key model.vocab[\"c\"]: expected an integer",
       [](json& d) { d["model"]["vocab"]["c"] = 1.5; }},
      {"key model.vocab[\"c\"]: expected an integer",
       [](json& d) { d["model"]["vocab"]["c"] = 18446744073709551615U; }},
      {"expected different ids, got 2 for both \"ab\" and \"c\"",
       [](json& d) { d["model"]["vocab"]["c"] = 2; }},
      {"key model.merges: expected a list", [](json& d) { d["model"]["merges"] = "a b"; }},
      {"key model.merges[1]: expected tokens of model.vocab (\"ba\" is missing)",
       [](json& d) { d["model"]["merges"].push_back("b a"); }},
      {"key model.merges[1]: expected tokens of model.vocab (\"q\" is missing)",
       [](json& d) {
         d["model"]["merges"].push_back({"a", "q"});
       }},
      {"key model.merges[1]: expected two tokens with one space",
       [](json& d) { d["model"]["merges"].push_back("ab"); }},
      {"key model.merges[1]: expected \"left right\"",
       [](json& d) {
         d["model"]["merges"].push_back({"a", "b", "c"});
       }},
      {"key version: expected \"1.0\", got \"2.0\"", [](json& d) { d["version"] = "2.0"; }},
      {"key normalizer.type: expected one of NFC",
       [](json& d) { d["normalizer"]["type"] = "Nmt"; }},
      {"key normalizer.normalizers[0].type: expected one of NFC",
       [](json& d) {
         d["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "BertNormalizer"}}}}};
       }},
      {"key pre_tokenizer.type: expected one of Split",
       [](json& d) { d["pre_tokenizer"]["type"] = "BertPreTokenizer"; }},
      {"key pre_tokenizer.pattern.Regex: expected a regular expression",
       [](json& d) {
         d["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"Regex", "(a"}}},
                               {"behavior", "Isolated"},
                               {"invert", false}};
       }},
      {"key pre_tokenizer.behavior: expected Removed",
       [](json& d) {
         d["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", "a"}}},
                               {"behavior", "isolated"},
                               {"invert", false}};
       }},
      {"key decoder.type: expected one of ByteLevel",
       [](json& d) { d["decoder"]["type"] = "WordPiece"; }},
      {"key post_processor.type: expected one of ByteLevel",
       [](json& d) {
         d["post_processor"] = {{"type", "RobertaProcessing"}};
       }},
      {"key post_processor.special_tokens.<s>.ids[0]: expected the id of a token, got 99",
       [](json& d) {
         d["post_processor"] = {
             {"type", "TemplateProcessing"},
             {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
             {"special_tokens", {{"<s>", {{"ids", {99}}}}}}};
       }},
      {"key added_tokens[0]: expected an id of its own for \"<e>\", got 1, which belongs to \"b\"",
       [](json& d) { d["added_tokens"][0]["id"] = 1; }},
      {"key added_tokens[0]: expected id 0 for \"a\", which has it already, got 4",
       [](json& d) { d["added_tokens"][0]["content"] = "a"; }},
      {"key added_tokens[0].special: expected true or false",
       [](json& d) { d["added_tokens"][0]["special"] = "yes"; }},
      {"key added_tokens[0].id: expected an integer",
       [](json& d) { d["added_tokens"][0]["id"] = 1000000000; }},
  };
  for (const auto& [message, change] : cases) {
    const std::string error = error_after(change);
    EXPECT_THAT(error, HasSubstr("tokenizer.json"));
    EXPECT_THAT(error, HasSubstr(message));
  }
}

TEST(TokenizerFile, RefusesTextThatIsNotJson) {
  for (const std::string text : {"", "{", "[]", "null", "\xFF", "{\"model\": nul"}) {
    EXPECT_THAT(error_of(text), HasSubstr("tokenizer.json: expected")) << text;
  }
  EXPECT_THAT(error_of(std::string(1'000'000, '[')), HasSubstr("expected JSON"));
  const std::string text = minimal().dump();
  for (std::size_t size = 0; size < text.size(); size += 7) {
    EXPECT_NE(error_of(text.substr(0, size)), "no error") << size;
  }
}

TEST(TokenizerFile, RefusesSequencesNestedWithoutEnd) {
  json normalizer = {{"type", "NFC"}};
  for (int i = 0; i < 200; ++i) {
    normalizer = {{"type", "Sequence"}, {"normalizers", json::array({normalizer})}};
  }
  EXPECT_THAT(error_after([&](json& d) { d["normalizer"] = normalizer; }), HasSubstr("Sequence"));
}

TEST(TokenizerFile, BoundsBacktracking) {
  json document = minimal();
  document["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"Regex", "(a+)+$|(a|a)*b"}}},
                               {"behavior", "Isolated"},
                               {"invert", false}};
  const Tokenizer tokenizer = Tokenizer::from_json(document.dump(), "tokenizer.json");
  EXPECT_THROW(tokenizer.encode(std::string(60, 'a') + "c"), PromptError);
}

TEST(TokenizerFile, WarnsAboutWhatItIgnores) {
  json document = minimal();
  document["truncation"] = {{"max_length", 5}};
  document["added_tokens"][0]["id"] = 9;
  const Tokenizer tokenizer = Tokenizer::from_json(document.dump(), "tokenizer.json");
  ASSERT_EQ(tokenizer.warnings().size(), 2U);
  EXPECT_THAT(tokenizer.warnings()[0], HasSubstr("would number it 4"));
  EXPECT_THAT(tokenizer.warnings()[1], HasSubstr("truncation is ignored"));
  EXPECT_EQ(tokenizer.vocab_size(), 10U);
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0, 7, 9}), "a<e>");
}

class TokenizerFolder : public testing::Test {
 protected:
  TokenizerFolder()
      : folder_(fs::temp_directory_path() /
                ("blockscope_tokenizer_" +
                 std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write("tokenizer.json", minimal());
  }
  ~TokenizerFolder() override { fs::remove_all(folder_); }
  void write(const std::string& name, const json& document) const {
    std::ofstream(folder_ / name) << document.dump();
  }
  fs::path folder_;
};

TEST_F(TokenizerFolder, AddsTokensThatOnlyTheConfigHas) {
  write("tokenizer_config.json",
        {{"added_tokens_decoder",
          {{"4", {{"content", "<e>"}, {"special", true}, {"normalized", false}}},
           {"5", {{"content", "<|MASK|>"}, {"special", true}, {"normalized", false}}}}},
         {"eos_token", "<e>"},
         {"mask_token", {{"content", "<|MASK|>"}}},
         {"bos_token", nullptr}});
  const Tokenizer tokenizer = Tokenizer::from_directory(folder_);
  EXPECT_THAT(tokenizer.encode("a<|MASK|><e>"), ElementsAre(0, 5, 4));
  EXPECT_EQ(tokenizer.special_ids().eos, 4);
  EXPECT_EQ(tokenizer.special_ids().mask, 5);
  EXPECT_FALSE(tokenizer.special_ids().bos.has_value());
  EXPECT_TRUE(tokenizer.warnings().empty());
}

TEST_F(TokenizerFolder, LetsTheConfigsFlagsWin) {
  write("tokenizer_config.json",
        {{"added_tokens_decoder",
          {{"4", {{"content", "<e>"}, {"rstrip", true}, {"special", true}}}}}});
  EXPECT_THAT(Tokenizer::from_directory(folder_).encode("<e>  a"), ElementsAre(4, 0));
}

TEST_F(TokenizerFolder, ReadsTheOldFileIfTheConfigHasNoTokens) {
  write("added_tokens.json", {{"<x>", 5}, {"<e>", 4}});
  EXPECT_THAT(Tokenizer::from_directory(folder_).encode("<x>a"), ElementsAre(5, 0));
}

TEST_F(TokenizerFolder, RefusesContradictions) {
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"5", {{"content", "<e>"}}}}}});
  EXPECT_THROW(Tokenizer::from_directory(folder_), CheckpointError);
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"x", {{"content", "<y>"}}}}}});
  EXPECT_THROW(Tokenizer::from_directory(folder_), CheckpointError);
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"1", {{"content", "<y>"}}}}}});
  EXPECT_THROW(Tokenizer::from_directory(folder_), CheckpointError);
  write("tokenizer_config.json", json::array());
  EXPECT_THROW(Tokenizer::from_directory(folder_), CheckpointError);
  EXPECT_THROW(Tokenizer::from_directory(folder_ / "nowhere"), CheckpointError);
}

TEST_F(TokenizerFolder, FindsStopIdsInTheOrderOfTheSources) {
  write("tokenizer_config.json", {{"eos_token", "<e>"}});
  const Tokenizer tokenizer = Tokenizer::from_directory(folder_);
  EXPECT_THAT(read_stop_ids(folder_, tokenizer), ElementsAre(4));
  write("config.json", {{"eos_token_id", 3}});
  EXPECT_THAT(read_stop_ids(folder_, tokenizer), ElementsAre(3));
  write("generation_config.json", {{"eos_token_id", {2, 1, 2}}});
  EXPECT_THAT(read_stop_ids(folder_, tokenizer), ElementsAre(2, 1));
  write("generation_config.json", {{"eos_token_id", "<e>"}});
  EXPECT_THROW(read_stop_ids(folder_, tokenizer), CheckpointError);
}

}  // namespace
}  // namespace blockscope
