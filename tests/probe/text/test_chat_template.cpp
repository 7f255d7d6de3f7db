// Chat templates: known renderings of the families, bounds, and refusals by name.
// check_chat_template_parity.py compares the renderer with jinja2.
#include "probe/text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

const ChatOptions kNoPrompt{.add_generation_prompt = false, .enable_thinking = {}};

ChatTemplate load(const std::string& name) {
  const std::string path =
      std::string(BLOCKSCOPE_SOURCE_DIR) + "/tests/data/chat_templates/" + name + ".jinja";
  std::ifstream file(path);
  return ChatTemplate::recognise(std::string(std::istreambuf_iterator<char>(file), {}), path,
                                 {{"bos_token", "<|bos|>"}});
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
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

TEST(ChatTemplate, RendersTheTurnsOfLlada) {
  // The published template always opens the assistant's turn and trims what a turn says.
  const ChatTemplate chat = load("llada");
  const std::string expected =
      "<|bos|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(chat.render({{"user", " Hi\u3000\n"}}, {}), expected);
  EXPECT_EQ(chat.render({{"user", "Hi"}}, kNoPrompt), expected);
  EXPECT_FALSE(chat.switches_thinking());
  EXPECT_FALSE(chat.reads_date());
}

TEST(ChatTemplate, RendersTheTurnsOfLlada2) {
  const ChatTemplate chat = load("llada2");
  EXPECT_EQ(chat.render({{"user", "Hi"}}, {}),
            "<role>SYSTEM</role>detailed thinking off<|role_end|>"
            "<role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>");
  EXPECT_EQ(
      chat.render({{"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Yes."}}, kNoPrompt),
      "<role>SYSTEM</role>Be brief.\ndetailed thinking off<|role_end|>"
      "<role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>Yes.<|role_end|>");
  EXPECT_FALSE(chat.switches_thinking());
}

TEST(ChatTemplate, WritesTodaysDateWhereTheTemplateAsksForIt) {
  const ChatTemplate chat = load("dated_system");
  EXPECT_TRUE(chat.reads_date());
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%d %b %Y", std::localtime(&now));
  EXPECT_EQ(chat.render({{"system", " Be brief.\n"}, {"user", "Hi"}}, {}),
            "<|bos|><|start_header_id|>system<|end_header_id|>\n\nDate: " + std::string(date) +
                "\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
  for (const char* format : {"%c", "%-d", "%", "%%%"}) {
    const std::string text =
        "{{ messages[0].content }}{{ strftime_now('" + std::string(format) + "') }}";
    EXPECT_THROW(ChatTemplate::recognise(text, "x.jinja"), CheckpointError) << format;
  }
}

TEST(ChatTemplate, SaysWhatTheTemplateItselfRefuses) {
  const ChatTemplate chat = load("alternating");
  EXPECT_EQ(chat.render({{"user", "Hi"}}, {}), "<role>HUMAN</role>Hi\n<role>ASSISTANT</role>");
  try {
    chat.render({{"user", "a"}, {"user", "b"}}, {});
    FAIL();
  } catch (const PromptError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("alternating.jinja:6: "), std::string::npos) << message;
    EXPECT_NE(message.find("Turns alternate, got user twice"), std::string::npos) << message;
  }
  const ChatTemplate capitals =
      ChatTemplate::recognise("{{ messages[0].content | upper }}probe-u", "x.jinja");
  EXPECT_THROW(capitals.render({{"user", "\u00e9"}}, {}), PromptError);
}

TEST(ChatTemplate, RefusesATemplateThatLosesTheUsersMessage) {
  const char* others[] = {
      "",
      "{{ '<|im_start|>assistant\\n' }}",
      "{% for m in messages %}{% if m.role == 'human' %}{{ m.content }}{% endif %}{% endfor %}",
      "{{ messages[0].text }}",
  };
  for (const char* text : others) {
    try {
      ChatTemplate::recognise(text, "x.jinja");
      ADD_FAILURE() << text;
    } catch (const CheckpointError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("shows the user's message"), std::string::npos) << message;
      EXPECT_NE(message.find("pass it as text"), std::string::npos) << message;
    }
  }
}

TEST(ChatTemplate, NamesTheConstructThatItDoesNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{% call f() %}{% endcall %}",
       "x.jinja:2: expected a chat template of the supported "
       "subset of Jinja, got the statement \"call\""},
      {"{% if true %}{% macro f() %}{% endmacro %}{% endif %}", "a macro inside another block"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "\"varargs\" in a macro"},
      {"{% macro f(a=1, b) %}{% endmacro %}", "a parameter without a default after one with"},
      {"{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "call each other without end"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "too many arguments of a macro"},
      {"{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "the argument \"b\" of a macro"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "the argument \"a\" of a macro"},
      {"{% macro f() %}{% endmacro %}{{ f ~ 'x' }}", "a function as a value"},
      {"{% set a %}{% call f() %}", "the statement \"call\""},
      {"{% set a | trim %}x{% endset %}", "instead of \"=\""},
      {"{% set a.b %}x{% endset %}", "\"a\" is not a namespace"},
      {"{{ 5[1:] }}", "a slice of something that is not a list or a string"},
      {"{{ 3 % 0 }}", "a division by zero"},
      {"{{ range(1, 3, 0) }}", "range() with a step of 0"},
      {"{{ range(200000) | length }}", "range() of more than 100,000 numbers"},
      {"{{ messages | tojson }}",
       "x.jinja:1: this chat template can't render these messages: the "
       "filter \"tojson\" is not supported"},
      {"{% for a, b in messages %}{% endfor %}", "a loop over several names (\"a, b\")"},
      {"{{ bos_token + messages[0].content }}", "a string operation on an undefined value"},
      {"{{ cycler(3) }}", "the function \"cycler\" is not supported"},
      {"{{ messages[0].content + range }}", "a function as a value"},
      {"{{ messages[0].content.title() }}", "the method \"title\" is not supported"},
      {"{% if messages is divisibleby(2) %}{% endif %}", "a test with arguments"}};
  for (const auto& [text, expected] : cases) {
    try {
      ChatTemplate::recognise(text, "x.jinja");
      ADD_FAILURE() << text;
    } catch (const CheckpointError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(expected), std::string::npos) << message;
      EXPECT_NE(message.find("HINT: render the prompt elsewhere"), std::string::npos) << message;
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
                               "{% macro f() %}",
                               "{% set a %}",
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
  // Each of these would double something sixty times, nest it without end, or keep much of it.
  const std::string long_text =
      "{% set s = 'xxxxxxxxxxxxxxxx' %}" + repeated("{% set s = s ~ s %}", 21);
  const std::string texts[] = {
      "{% set s = 'xxxxxxxxxxxxxxxx' %}" + repeated("{% set s = s + s %}", 60),
      "{% set s = 'xxxxxxxxxxxxxxxx' %}" + repeated("{% set s = s ~ s %}", 60),
      "{% set n = 1 %}" + repeated("{% set n = n + n %}", 70),
      "{% set n = -1 %}" + repeated("{% set n = n + n %}", 63) + "{% set n = -n %}",
      "{% set a = [1] %}" + repeated("{% set a = [a, a] %}", 60),
      "{% set n = namespace() %}{% set n.n = n %}",
      "{% set n = namespace() %}" + repeated("{% set n = namespace(n=n) %}", 60),
      long_text + "{% set a = [" + repeated("s, ", 40) + "] %}",
      long_text + "{% set a = s.split('x') %}",
      long_text + repeated("{{ s }}", 3),
      long_text +
          "{% set a = [1,1,1,1,1,1,1,1,1,1] %}{% for x in a %}{% for y in a %}"
          "{% if 'y' in s %}{% endif %}{% endfor %}{% endfor %}",
      long_text + "{% set t = s ~ '' %}" + repeated("{% if s == t %}{% endif %}", 40),
      "{% set s = 'x x ' %}" + repeated("{% set s = s ~ s %}", 14) +
          "{% set a = s.split() %}{% for i in a %}{% if 'y' in a %}{% endif %}{% endfor %}",
      "{% set a = messages[0].content.split('o') %}" + repeated("{% for x in a %}", 20) +
          std::string(4096, 'x') + repeated("{% endfor %}", 20)};
  for (const std::string& text : texts) {
    EXPECT_THROW(ChatTemplate::recognise(text + "{{ messages[0].content }}", "x.jinja"),
                 CheckpointError)
        << text.substr(0, 60) << "..." << text.substr(text.size() - 60);
  }
}

TEST_F(ChatTemplateFolder, PrefersTheFileOverTheConfig) {
  const std::string chatml =
      "{% for m in messages %}{{'<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n'}}"
      "{% endfor %}{{ '<|im_start|>assistant\\n' }}";
  write("tokenizer_config.json", R"({"chat_template": "no message in it"})");
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
