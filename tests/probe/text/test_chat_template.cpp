// Chat templates: known renderings of the family's members, and refusal of everything else.
// check_chat_template_parity.py compares the renderer with jinja2.
#include "probe/text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

const ChatOptions kNoPrompt{.add_generation_prompt = false, .enable_thinking = {}};

ChatTemplate load(const std::string& name) {
  const std::string path =
      std::string(BLOCKSCOPE_SOURCE_DIR) + "/tests/data/chat_templates/" + name + ".jinja";
  std::ifstream file(path);
  return ChatTemplate::recognise(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

/// A checkpoint folder of its own, removed with the test.
class ChatTemplateFolder : public testing::Test {
 protected:
  ChatTemplateFolder()
      : folder_(fs::temp_directory_path() /
                ("blockscope_chat_" +
                 std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ChatTemplateFolder() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  fs::path folder_;
};

TEST(ChatTemplate, RendersTurnsAndTheGenerationPrompt) {
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Hi"}};
  const std::string turns =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n";
  for (const char* name : {"chatml", "default_system", "thinking"}) {
    const ChatTemplate chat = load(name);
    EXPECT_EQ(chat.render(messages, {}), turns + "<|im_start|>assistant\n") << name;
    EXPECT_EQ(chat.render(messages, kNoPrompt), turns) << name;
  }
  EXPECT_EQ(ChatTemplate::chatml().render(messages, {}), turns + "<|im_start|>assistant\n");
}

TEST(ChatTemplate, AddsADefaultSystemMessageWhereTheTemplateHasOne) {
  const std::string expected =
      "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(load("default_system").render({{"user", "Hi"}}, {}), expected);
}

TEST(ChatTemplate, DropsTheThoughtsOfEarlierTurnsOnly) {
  const ChatTemplate chat = load("thinking");
  const ChatMessage thoughtful{"assistant", "<think>\nhm\n</think>\n\nYes."};
  EXPECT_EQ(chat.render({{"user", "a"}, thoughtful, {"user", "b"}}, kNoPrompt),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
            "<|im_start|>user\nb<|im_end|>\n");
  EXPECT_EQ(chat.render({{"user", "a"}, thoughtful}, kNoPrompt),
            "<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes.<|im_end|>\n");
}

TEST(ChatTemplate, ClosesTheThinkBlockOnlyWhenThinkingIsSwitchedOff) {
  const ChatTemplate chat = load("thinking");
  const std::string open = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(chat.render({{"user", "a"}}, {}), open);
  EXPECT_EQ(chat.render({{"user", "a"}}, {.enable_thinking = true}), open);
  EXPECT_EQ(chat.render({{"user", "a"}}, {.enable_thinking = false}),
            open + "<think>\n\n</think>\n\n");
}

TEST(ChatTemplate, RefusesToolsRolesEmptyListsAndBytesThatAreNotText) {
  const ChatTemplate chat = ChatTemplate::chatml();
  EXPECT_THROW(chat.render({}, {}), PromptError);
  EXPECT_THROW(chat.render({{"tool", "x"}}, {}), PromptError);
  EXPECT_THROW(chat.render({{"user", "\xFF"}}, {}), PromptError);
}

TEST(ChatTemplate, RefusesWhatIsNotChatMl) {
  const char* others[] = {
      "",
      "{{ messages[0].content }}",
      "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}",
      "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
      "<|eot_id|>{% endfor %}",
      // ChatML without the generation prompt
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
  };
  for (const char* text : others) {
    try {
      ChatTemplate::recognise(text, "x.jinja");
      ADD_FAILURE() << text;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find("pass it as text"), std::string::npos);
    }
  }
}

TEST(ChatTemplate, RefusesBrokenAndHostileTemplatesWithALine) {
  std::string deep = "{{ ";
  for (int i = 0; i < 10000; ++i) deep += "(";
  std::string chain = "{{ 1";
  for (int i = 0; i < 50000; ++i) chain += "+1";
  chain += " }}";
  std::string nested;
  for (int i = 0; i < 10000; ++i) nested += "{% if true %}";
  const std::string texts[] = {"{{",
                               "{% if %}",
                               "{% if true %}",
                               "{% endif %}",
                               "{% for x in messages %}",
                               "{% else %}",
                               "{% if true %}{% else %}{% else %}{% endif %}",
                               "{{ 'abc }}",
                               "{# never closed",
                               "{% macro f() %}{% endmacro %}",
                               "{% include 'x' %}",
                               "{{ a $ b }}",
                               "{{ 99999999999999 }}",
                               "{{ '\\ud800' }}",
                               "{{ messages[1:2:3:4] }}",
                               "{{ a.b.c }}",
                               "{{ messages | map('x') }}",
                               "{{ cycler() }}",
                               "{{ ''.__class__.__mro__ }}",
                               "{{ ''.__class__() }}",
                               "{% raw %}x{% endraw %}",
                               "{% for a in 5 %}{% endfor %}",
                               "{{ messages }}",
                               "\xFF",
                               deep,
                               chain,
                               nested,
                               "{% for a in messages * 2 %}{% endfor %}",
                               "{% for a, b in messages %}{% endfor %}",
                               "{{ raise_exception('no') }}",
                               "{% set x = 1 %}{% set x.y = 2 %}"};
  for (const std::string& text : texts) {
    EXPECT_THROW(ChatTemplate::recognise(text, "x.jinja"), CheckpointError) << text.substr(0, 80);
  }
  try {
    ChatTemplate::recognise("a\nb\n{% macro %}", "x.jinja");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("x.jinja:3: "), std::string::npos) << error.what();
  }
}

TEST(ChatTemplate, BoundsTheWorkOfATemplate) {
  std::string loops = "{% set a = [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] %}";
  for (int i = 0; i < 12; ++i) loops += "{% for x in a %}";
  loops += "{{ x }}";
  for (int i = 0; i < 12; ++i) loops += "{% endfor %}";
  EXPECT_THROW(ChatTemplate::recognise(loops, "x.jinja"), CheckpointError);
  std::string doubling = "{% set s = 'xxxxxxxxxxxxxxxx' %}";
  for (int i = 0; i < 60; ++i) doubling += "{% set s = s + s %}";
  EXPECT_THROW(ChatTemplate::recognise(doubling, "x.jinja"), CheckpointError);
}

TEST_F(ChatTemplateFolder, PrefersTheFileOverTheConfig) {
  const std::string chatml =
      "{% for m in messages %}{{'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n'}}"
      "{% endfor %}{{ '<|im_start|>assistant\\n' }}";
  write("tokenizer_config.json", R"({"chat_template": "not ChatML"})");
  EXPECT_THROW(ChatTemplate::from_directory(folder_), CheckpointError);
  write("chat_template.jinja", chatml);
  const ChatTemplate chat = ChatTemplate::from_directory(folder_);
  EXPECT_NE(chat.source().find("chat_template.jinja"), std::string::npos);
  EXPECT_EQ(chat.render({{"user", "x"}}, {}),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(ChatTemplateFolder, ReadsTheDefaultOfAListAndTheSpecialTokens) {
  write("tokenizer_config.json",
        R"({"eos_token": {"content": "<|im_end|>"}, "chat_template": [
            {"name": "tool_use", "template": "{{ nothing }}"},
            {"name": "default", "template":
             "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content + eos_token + '\n' }}{% endfor %}<|im_start|>assistant{{ '\n' }}"}]})");
  EXPECT_EQ(ChatTemplate::from_directory(folder_).render({{"user", "x"}}, {}),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(ChatTemplateFolder, SaysSoWhenThereIsNoTemplate) {
  EXPECT_THROW(ChatTemplate::from_directory(folder_), CheckpointError);
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THROW(ChatTemplate::from_directory(folder_), CheckpointError);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THROW(ChatTemplate::from_directory(folder_), CheckpointError);
}

}  // namespace
}  // namespace blockscope
