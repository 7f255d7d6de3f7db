// The tokenizer against frozen results of the PyPI package
// (tests/probe/text/make_tokenizer_fixtures.py), and properties of its own.
#include "probe/text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/text/unicode.h"

namespace blockscope {
namespace {

using nlohmann::json;

const std::string kFolder = std::string(BLOCKSCOPE_SOURCE_DIR) + "/tests/data/tokenizers/";

const json& expected() {
  static const json document = [] {
    std::ifstream file(kFolder + "expected.json");
    return json::parse(file);
  }();
  return document;
}

class FixtureTokenizer : public testing::TestWithParam<std::string> {
 protected:
  FixtureTokenizer()
      : tokenizer_(Tokenizer::from_file(kFolder + GetParam() + ".json")),
        expected_(expected().at(GetParam())) {}

  Tokenizer tokenizer_;
  const json& expected_;
};

TEST_P(FixtureTokenizer, EncodesHardTextsAsThePackageDoes) {
  const json& texts = expected().at("texts");
  ASSERT_GT(texts.size(), 40U);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(json(tokenizer_.encode(texts[i].get<std::string>(), false)), expected_["ids"][i])
        << "text " << i << ": " << texts[i];
  }
}

TEST_P(FixtureTokenizer, AppliesThePostProcessorsTemplate) {
  EXPECT_EQ(json(tokenizer_.encode("Hello world")), expected_["first_with_special"]);
}

TEST_P(FixtureTokenizer, DecodesAsThePackageDoes) {
  for (std::size_t i = 0; i < expected_["ids"].size(); ++i) {
    const auto ids = expected_["ids"][i].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_.decode(ids, false), expected_["decoded"][i].get<std::string>()) << i;
    EXPECT_EQ(tokenizer_.decode(ids, true), expected_["decoded_skip"][i].get<std::string>()) << i;
  }
}

TEST_P(FixtureTokenizer, DecodesCutCharactersAndUnknownIdsAsThePackageDoes) {
  for (std::size_t i = 0; i < expected_["random_ids"].size(); ++i) {
    const auto ids = expected_["random_ids"][i].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_.decode(ids), expected_["random_decoded"][i].get<std::string>()) << i;
  }
}

TEST_P(FixtureTokenizer, HasThePackagesVocabulary) {
  EXPECT_EQ(tokenizer_.vocab_size(), expected_["vocab_size"].get<std::size_t>());
  for (std::size_t id = 0; id < tokenizer_.vocab_size(); ++id) {
    const auto token = tokenizer_.id_to_token(static_cast<TokenId>(id));
    ASSERT_TRUE(token.has_value()) << id;
    EXPECT_EQ(tokenizer_.token_to_id(*token), static_cast<TokenId>(id));
  }
  EXPECT_FALSE(tokenizer_.id_to_token(-1).has_value());
  EXPECT_FALSE(tokenizer_.id_to_token(static_cast<TokenId>(tokenizer_.vocab_size())).has_value());
}

TEST_P(FixtureTokenizer, PiecesAsBytesJoinToTheDecodedText) {
  for (const json& sequence : expected_["ids"]) {
    const auto ids = sequence.get<std::vector<TokenId>>();
    std::string bytes;
    for (const TokenId id : ids) bytes += tokenizer_.token_bytes(id);
    // Some decoders drop the space that begins a text.
    const std::string decoded = tokenizer_.decode(ids);
    if (replace_invalid_utf8(bytes) != " " + decoded) {
      EXPECT_EQ(replace_invalid_utf8(bytes), decoded);
    }
  }
}

TEST_P(FixtureTokenizer, EncodesAMegabyteRunInLinearTime) {
  for (const std::string unit : {"a", " ", "\n", "e\u0301\u0316", "ab ", "é"}) {
    std::string text;
    while (text.size() < (std::size_t{1} << 20)) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const std::vector<TokenId> ids = tokenizer_.encode(text, false);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    // A quadratic merge needs minutes; the margin is for sanitizers and busy machines.
    EXPECT_LT(seconds.count(), 20.0) << "unit \"" << unit << "\"";
    EXPECT_LE(ids.size(), text.size() + 3);  // a prefix of SentencePiece is three byte tokens
  }
}

TEST_P(FixtureTokenizer, StopsBehindTheTokensThatTheCallerCanUse) {
  for (const std::string unit : {"a", " ", "ab cd ", "é", "7"}) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += unit;
    const std::vector<TokenId> ids = tokenizer_.encode(text, false);
    // A normalizer that strips spaces, or one unknown token for all.
    if (tokenizer_.encode(text + text, false).size() == ids.size()) continue;
    EXPECT_EQ(tokenizer_.encode(text, false, ids.size()), ids) << unit;
    EXPECT_THROW(tokenizer_.encode(text, false, ids.size() - 1), PromptError) << unit;
    while (text.size() < (std::size_t{1} << 22)) text += text;
    EXPECT_THROW(tokenizer_.encode(text, false, 1000), PromptError) << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, FixtureTokenizer,
                         testing::Values("qwen2", "gpt2", "llama3", "mixed", "gemma", "llama2",
                                         "mistral", "unigram", "unigram_bytes"),
                         [](const auto& style) { return style.param; });

TEST(Tokenizer, RoundTripsTextThatIsNormalised) {
  const Tokenizer tokenizer = Tokenizer::from_file(kFolder + "qwen2.json");
  for (const json& entry : expected().at("texts")) {
    const auto text = entry.get<std::string>();
    const std::string normalised = normalize_unicode(text, NormalForm::kNfc);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), normalised);
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::from_file(kFolder + "qwen2.json");
  for (const std::string text :
       {"ab\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_THROW(tokenizer.encode(text), PromptError);
  }
  try {
    tokenizer.encode("ab\xFF");
    FAIL();
  } catch (const PromptError& error) {
    EXPECT_NE(std::string(error.what()).find("byte 2 (0xFF)"), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, KnowsWhichAddedTokensAreSpecial) {
  const Tokenizer tokenizer = Tokenizer::from_file(kFolder + "qwen2.json");
  EXPECT_TRUE(tokenizer.is_special(tokenizer.token_to_id("<|im_end|>").value()));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.token_to_id("<think>").value()));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_EQ(tokenizer.added_tokens().size(), 6U);
  EXPECT_EQ(tokenizer.added_tokens().back().content, "<|MASK|>");
}

TEST(ReplaceInvalidUtf8, ReplacesMaximalParts) {
  // The example of table 3-11 of the Unicode standard, and a cut-off sequence at the end.
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41");
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x91"), "a\xEF\xBF\xBD");
}

}  // namespace
}  // namespace blockscope
