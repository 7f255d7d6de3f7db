// Prompt files: what is accepted, what is refused with its line, and the stable hash.
#include "probe/text/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PromptSet read(const std::string& text) {
  std::istringstream stream(text);
  return read_prompts(stream, "p.jsonl");
}

std::string prompt_error(const std::string& text) {
  try {
    read(text);
  } catch (const PromptError& error) {
    return error.what();
  }
  return "no error";
}

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::from_file(std::string(BLOCKSCOPE_SOURCE_DIR) +
                                                         "/tests/data/tokenizers/llama3.json");
  return instance;
}

TEST(ReadPrompts, AcceptsEveryKindOfInput) {
  const PromptSet set =
      read(R"({"prompt": "a", "id": "x", "answer": "b", "metric": "f1", "gen_length": 32})"
           "\n"
           R"({"text": "c", "doc_id": 7, "answer": ["d", "e"]})"
           "\n"
           R"({"messages": [{"role": "user", "content": "f"}]})"
           "\n"
           R"({"input_ids": [1, 2, 3]})");
  ASSERT_EQ(set.prompts.size(), 4U);
  EXPECT_EQ(set.prompts[0].id, "x");
  EXPECT_EQ(std::get<std::string>(set.prompts[0].input), "a");
  EXPECT_THAT(set.prompts[0].answers, ElementsAre("b"));
  EXPECT_EQ(set.prompts[0].metric, Metric::kF1);
  EXPECT_EQ(set.prompts[0].gen_length, 32);
  EXPECT_EQ(set.prompts[1].id, "7");
  EXPECT_THAT(set.prompts[1].answers, ElementsAre("d", "e"));
  EXPECT_FALSE(set.prompts[1].metric.has_value());
  EXPECT_EQ(set.prompts[2].id, "line-3");
  EXPECT_EQ(std::get<std::vector<ChatMessage>>(set.prompts[2].input)[0].content, "f");
  EXPECT_THAT(std::get<std::vector<TokenId>>(set.prompts[3].input), ElementsAre(1, 2, 3));
  EXPECT_TRUE(set.warnings.empty());
}

TEST(ReadPrompts, TakesATaskThatIsATextOrANumber) {
  const PromptSet set = read(
      "{\"prompt\": \"a\", \"task\": \"sums\"}\n{\"prompt\": \"b\", \"task\": 3}\n{\"prompt\": "
      "\"c\"}");
  EXPECT_EQ(set.prompts[0].task, "sums");
  EXPECT_EQ(set.prompts[1].task, "3");
  EXPECT_EQ(set.prompts[2].task, "");
  EXPECT_TRUE(set.warnings.empty());
}

TEST(ReadPrompts, ToleratesByteOrderMarkCrlfAndBlankLines) {
  const PromptSet set =
      read("\xEF\xBB\xBF{\"prompt\": \"a\"}\r\n\r\n  \t\n{\"prompt\": \"b\"}\r\n");
  ASSERT_EQ(set.prompts.size(), 2U);
  EXPECT_EQ(set.prompts[1].line, 4U);
}

TEST(ReadPrompts, TreatsNullAsAbsent) {
  const PromptSet set = read(R"({"prompt": "a", "text": null, "answer": null, "metric": null})");
  EXPECT_TRUE(set.prompts[0].answers.empty());
}

TEST(ReadPrompts, WarnsOnceAboutAnUnknownKey) {
  const PromptSet set = read("{\"prompt\": \"a\", \"x\": 1}\n{\"prompt\": \"b\", \"x\": 2}");
  ASSERT_EQ(set.warnings.size(), 1U);
  EXPECT_THAT(set.warnings[0], HasSubstr("p.jsonl:1: key \"x\""));
}

TEST(ReadPrompts, NamesTheLineOfEveryMistake) {
  const std::string good = "{\"prompt\": \"a\"}\n\n";
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\": ", "p.jsonl:3: expected JSON"},
      {"[1]", "p.jsonl:3: expected a JSON object, got a list of 1"},
      {"\"x\"", "p.jsonl:3: expected a JSON object"},
      {"{}", "p.jsonl:3: expected one of prompt, text, messages, input_ids, got none"},
      {"{\"prompt\": \"a\", \"input_ids\": [1]}", "got prompt and input_ids"},
      {"{\"prompt\": 3}", "key prompt: expected a string, got 3"},
      {"{\"prompt\": \"\"}", "key prompt: expected a text that is not empty"},
      {"{\"prompt\": \"\xFF\"}", "p.jsonl:3: expected JSON"},
      {"{\"input_ids\": []}", "key input_ids: expected a list"},
      {"{\"input_ids\": [1, -1]}", "key input_ids[1]: expected an integer from 0"},
      {"{\"input_ids\": [18446744073709551615]}", "key input_ids[0]: expected an integer"},
      {"{\"input_ids\": [1.0]}", "key input_ids[0]: expected an integer"},
      {"{\"messages\": []}", "key messages: expected a list"},
      {"{\"messages\": [{\"role\": \"user\"}]}", "key messages[0].content: expected a string"},
      {"{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", "key messages[0].role"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [1]}]}",
       "key messages[0].tool_calls: not supported"},
      {"{\"prompt\": \"a\", \"task\": [1]}", "key task: expected a string or an integer"},
      {"{\"prompt\": \"a\", \"metric\": \"bleu\"}", "key metric: expected one of exact_match"},
      {"{\"prompt\": \"a\", \"answer\": [1]}", "key answer: expected a string"},
      {"{\"prompt\": \"a\", \"id\": 1.5}", "key id: expected a string or an integer"},
      {"{\"prompt\": \"a\", \"gen_length\": 0}", "key gen_length: expected an integer from 1"},
      {"{\"prompt\": \"a\", \"id\": \"line-1\"}", "which line 1 has"},
  };
  for (const auto& [line, message] : cases) {
    const std::string error = prompt_error(good + line);
    EXPECT_THAT(error, HasSubstr(message)) << line;
    EXPECT_THAT(error, HasSubstr("p.jsonl:3")) << line;
  }
}

TEST(ReadPrompts, RefusesAFileWithoutPrompts) {
  EXPECT_THAT(prompt_error(""), HasSubstr("at least one prompt"));
  EXPECT_THAT(prompt_error("\n\n"), HasSubstr("at least one prompt"));
  EXPECT_THROW(read_prompts(std::filesystem::path("/nonexistent/p.jsonl")), PromptError);
  EXPECT_THROW(read_prompts(std::filesystem::temp_directory_path()), PromptError);
}

TEST(ReadPrompts, SurvivesDeeplyNestedJson) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(prompt_error(deep), HasSubstr("p.jsonl:1: expected JSON"));
}

TEST(TokenizePrompt, AddsBosToTextAndNotToRenderedMessages) {
  const TokenId bos = tokenizer().token_to_id("<|begin_of_text|>").value();
  const auto vocab = static_cast<std::int64_t>(tokenizer().vocab_size());
  Prompt prompt;
  prompt.input = std::string("Hi");
  EXPECT_EQ(tokenize_prompt(prompt, tokenizer(), nullptr, {}, vocab).front(), bos);
  prompt.input = std::vector<ChatMessage>{{"user", "Hi"}};
  const ChatTemplate chat = ChatTemplate::chatml();
  const std::vector<TokenId> ids = tokenize_prompt(prompt, tokenizer(), &chat, {}, vocab);
  EXPECT_EQ(tokenizer().decode(ids), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(TokenizePrompt, RefusesIdsTheModelDoesNotHave) {
  Prompt prompt;
  prompt.input = std::vector<TokenId>{5, 99};
  EXPECT_THAT(tokenize_prompt(prompt, tokenizer(), nullptr, {}, 100), ElementsAre(5, 99));
  EXPECT_THROW(tokenize_prompt(prompt, tokenizer(), nullptr, {}, 99), PromptError);
  prompt.input = std::vector<ChatMessage>{{"user", "Hi"}};
  EXPECT_THROW(tokenize_prompt(prompt, tokenizer(), nullptr, {}, 99), PromptError);
}

TEST(PromptHash, IsFnv1aOverLittleEndianIds) {
  EXPECT_EQ(fnv1a_64(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a_64("a"), 0xaf63dc4c8601ec8cU);  // published test vectors
  EXPECT_EQ(fnv1a_64("foobar"), 0x85944171f73967e8U);
  const TokenId ids[] = {0x6f6f66 | 0x62000000, 0x7261};  // "foob" "ar\0\0"
  EXPECT_EQ(prompt_hash(ids), fnv1a_64(std::string_view("foobar\0\0", 8)));
}

}  // namespace
}  // namespace blockscope
