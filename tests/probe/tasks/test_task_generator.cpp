// The task generator: reproducible, disjoint splits, answers that an independent reader of the text
// finds again, one token a word.
#include "probe/tasks/task_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "decode_record/base/error.h"
#include "probe/tasks/prompts_file.h"
#include "probe/text/tokenizer.h"

namespace blockscope {
namespace {

constexpr std::array<std::size_t, 3> kContexts = {128, 256, 1024};

std::vector<std::string> split(const std::string& text, const std::string& separators) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text + separators.substr(0, 1)) {
    if (separators.find(c) == std::string::npos) {
      part += c;
    } else if (!part.empty()) {
      parts.push_back(part);
      part.clear();
    }
  }
  return parts;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += " " + word;
  return text;
}

/// " Anna amber river", found by regular expression in the prompt's text.
std::string solve_key(const std::string& prompt, const std::string& key) {
  for (const std::string& form :
       {"Note: " + key + " (\\w+ \\w+)\\.", "The password of " + key + " is (\\w+ \\w+)\\.",
        key + " keeps the password (\\w+ \\w+)\\."}) {
    std::smatch found;
    if (std::regex_search(prompt, found, std::regex(form))) return " " + key + " " + found[1].str();
  }
  return " nothing about " + key;
}

std::string solve_chain(const std::string& prompt, std::string variable) {
  std::string answer = " " + variable;
  for (int hop = 0; hop < 8; ++hop) {
    std::smatch found;
    if (std::regex_search(prompt, found, std::regex(" " + variable + "=(\\d)\\."))) {
      return answer + "=" + found[1].str() + ".";
    }
    if (!std::regex_search(prompt, found, std::regex(" " + variable + " = (\\w+)\\."))) break;
    variable = found[1].str();
    answer += " = " + variable;
  }
  return " no end";
}

std::string solve_sum(const std::string& expression) {
  int total = expression[0] - '0';
  std::string answer;
  for (std::size_t i = 1; i + 1 < expression.size(); i += 2) {
    const int term = expression[i + 1] - '0';
    if (i > 1) answer += ';';
    answer += std::to_string(total) + expression[i] + expression[i + 1] + "=";
    total += expression[i] == '+' ? term : -term;
    answer += std::to_string(total);
  }
  return answer + ".";
}

/// The answer, from the prompt's text alone.
std::string solve(const std::string& prompt) {
  std::smatch found;
  if (!std::regex_search(prompt, found, std::regex("\n(\\w+): ?([^\n]*)\nA:$")))
    return "no question";
  const std::string kind = found[1].str();
  const std::string body = found[2].str();
  if (kind == "Copy") return joined(split(body, " ")) + ".";
  if (kind == "Sum") return solve_sum(body);
  if (kind == "Chain") return solve_chain(prompt, body);
  if (kind == "Sort") {
    std::vector<std::string> letters = split(body, " ");
    std::sort(letters.begin(), letters.end());
    return joined(letters) + ".";
  }
  std::string answer;
  for (const std::string& key : split(body, ", ")) {
    answer += (answer.empty() ? "" : ",") + solve_key(prompt, key);
  }
  return answer + ".";
}

TEST(TaskGenerator, EveryAnswerIsWhatAnIndependentReaderOfTheTextFinds) {
  for (std::size_t t = 0; t < kNumTasks; ++t) {
    for (const std::size_t context : kContexts) {
      for (std::uint64_t index = 0; index < 40; ++index) {
        const TaskPrompt prompt =
            make_prompt(static_cast<Task>(t), context, TaskSplit::kTest, 5, index);
        ASSERT_EQ(solve(prompt.prompt), prompt.answer) << prompt.id << "\n" << prompt.prompt;
      }
    }
  }
}

TEST(TaskGenerator, TheSameSeedGivesTheSamePromptAndEveryOtherIndexAnother) {
  std::set<std::string> seen;
  for (std::uint64_t index = 0; index < 50; ++index) {
    const TaskPrompt prompt = make_prompt(Task::kNeedle, 256, TaskSplit::kTest, 3, index);
    EXPECT_EQ(prompt.prompt, make_prompt(Task::kNeedle, 256, TaskSplit::kTest, 3, index).prompt);
    EXPECT_TRUE(seen.insert(prompt.prompt).second) << index;
  }
}

TEST(TaskGenerator, TestStreamsStartInStatesThatNoTrainingStreamStartsIn) {
  std::set<std::uint64_t> train;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t index = 0; index < 500; ++index) {
      train.insert(TaskRandom(TaskSplit::kTrain, seed, index).state());
    }
  }
  EXPECT_EQ(train.size(), 10000U);
  for (std::uint64_t index = 0; index < 5000; ++index) {
    EXPECT_EQ(train.count(TaskRandom(TaskSplit::kTest, index % 20, index).state()), 0U);
  }
}

TEST(TaskGenerator, PromptsFillTheirContextAndNeverExceedIt) {
  for (std::size_t t = 0; t < kNumTasks; ++t) {
    for (const std::size_t context : kContexts) {
      for (std::uint64_t index = 0; index < 20; ++index) {
        const TaskPrompt prompt =
            make_prompt(static_cast<Task>(t), context, TaskSplit::kTest, 9, index);
        EXPECT_LE(prompt.prompt_words.size(), context) << prompt.id;
        EXPECT_GE(prompt.prompt_words.size(), context - 40) << prompt.id;
      }
    }
  }
}

TEST(TaskGenerator, DepthIsWhereTheAskedNeedleStandsAndCoversTheWholeContext) {
  std::array<int, 4> quarters{};
  for (std::uint64_t index = 0; index < 80; ++index) {
    const TaskPrompt prompt = make_prompt(Task::kNeedle, 1024, TaskSplit::kTest, 2, index);
    const std::size_t question = prompt.prompt.rfind("\nQ:");
    const std::size_t key_end = prompt.answer.find(' ', 1);
    const std::size_t at = prompt.prompt.find("Note:" + prompt.answer.substr(0, key_end));
    ASSERT_LT(at, question);
    EXPECT_NEAR(prompt.depth, static_cast<double>(at) / static_cast<double>(question), 0.03);
    ++quarters[std::min<std::size_t>(3, static_cast<std::size_t>(prompt.depth * 4.0))];
  }
  for (const int count : quarters) EXPECT_GE(count, 8);
}

TEST(TaskGenerator, EveryTaskWordIsOneTokenOfTheShippedTokenizer) {
  const Tokenizer tokenizer =
      Tokenizer::from_file(std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle/tokenizer.json");
  std::set<std::int64_t> ids;
  for (const std::string& word : task_words().text) {
    const auto tokens = tokenizer.encode(word);
    ASSERT_EQ(tokens.size(), 1U) << word;
    EXPECT_TRUE(ids.insert(tokens.front()).second) << word;
  }
}

TEST(TaskGenerator, TokenizingThePromptsTextGivesItsWordsOneByOne) {
  const Tokenizer tokenizer =
      Tokenizer::from_file(std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle/tokenizer.json");
  for (std::size_t t = 0; t < kNumTasks; ++t) {
    const TaskPrompt prompt = make_prompt(static_cast<Task>(t), 512, TaskSplit::kTest, 4, t);
    std::vector<TokenId> expected;
    for (const TaskWord word : prompt.prompt_words) {
      expected.push_back(tokenizer.encode(task_words().text[word]).front());
    }
    EXPECT_EQ(tokenizer.encode(prompt.prompt), expected) << prompt.id;
  }
}

TEST(TaskGenerator, PromptLinesAreJsonWithIdAnswerAndMetric) {
  PromptsSpec spec;
  spec.count = 15;
  spec.contexts = {128, 256};
  std::ostringstream out;
  write_prompts(spec, out);
  std::istringstream lines(out.str());
  std::set<std::string> ids;
  std::set<std::string> tasks;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_EQ(json.at("metric"), "exact_match");
    EXPECT_EQ(solve(json.at("prompt").get<std::string>()), json.at("answer").get<std::string>());
    EXPECT_TRUE(ids.insert(json.at("id").get<std::string>()).second);
    tasks.insert(json.at("task").get<std::string>());
  }
  EXPECT_EQ(ids.size(), 15U);
  EXPECT_EQ(tasks.size(), kNumTasks);
}

TEST(TaskGenerator, AnUnknownTaskIsAUsageErrorThatListsTheKnownOnes) {
  try {
    task_from_name("poetry");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("multi_key"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace blockscope
