// Seeded synthetic tasks for the shipped model: readable filler text with needles in it, then
// questions. A document is a context and any number of questions. Each question is read alone,
// right after the context. Training uses all questions; a prompt is the context with one of them.
// No LibTorch here.
//
// clang-format off
//   Text: The old baker walked slowly to the market. Note: Anna amber river. kite = lamp. ...
//   Q: Anna          A: Anna amber river.                     needle; sentence (in a wordier form)
//   Q: Anna, Boris   A: Anna amber river, Boris stone oak.    multi_key
//   Chain: kite      A: kite = lamp=7.                        chain
//   Sum:3+4+9        A:3+4=7;7+9=16.                          arithmetic
//   Copy: oak moss   A: oak moss.                             copy
//   Sort: q d k      A: d k q.                                sort
// clang-format on
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/tasks/task_random.h"
#include "probe/tasks/task_words.h"

namespace blockscope {

enum class Task : std::uint8_t { kNeedle, kSentence, kMultiKey, kChain, kArithmetic, kCopy, kSort };
inline constexpr std::size_t kNumTasks = 7;
inline constexpr std::array<const char*, kNumTasks> kTaskNames = {
    "needle", "sentence", "multi_key", "chain", "arithmetic", "copy", "sort"};

/// Throws UsageError for an unknown name, listing the known ones.
Task task_from_name(const std::string& name);

struct TaskQuestion {
  Task task = Task::kNeedle;
  std::vector<TaskWord> question;  // from "\n" to "A:"
  std::vector<TaskWord> answer;    // without the end token
  double depth =
      -1.0;  // relative place of the asked needle, 0: start of the context; -1: no needle
};

struct TaskDocument {
  std::vector<TaskWord> context;
  std::vector<TaskQuestion> questions;
};

/// The contents of one document. Counts are upper limits: statements that do not fit the context
/// are left out, and so are their questions.
struct DocumentSpec {
  std::size_t context_length = 64;  // most words of the context
  std::size_t needles = 4;          // at least 1
  std::size_t sentences = 0;        // needles in the wordier form
  std::size_t chains = 0;
  std::array<std::size_t, kNumTasks> questions{};  // how many questions of each task
  std::size_t least_terms = 2;                     // fewest terms of a sum; the most is 4
  double depth = -1.0;  // in [0, 1]: put the statements that are asked for near this depth
};

TaskDocument make_document(const DocumentSpec& spec, TaskRandom& random);

/// One prompt of a task: context and question, at most `context_length` words.
struct TaskPrompt {
  std::string id;      // "test-needle-1024-7-000012": split, task, context length, seed, index
  std::string prompt;  // text
  std::string answer;  // text after "A:", without the end token
  Task task = Task::kNeedle;
  std::size_t context_length = 0;
  double depth = -1.0;
  std::vector<TaskWord> prompt_words, answer_words;
};
/// `depth` in [0, 1]: the place of the statement that is asked for; unset: random. Throws
/// UsageError for a depth with a task whose answer is not in one place (all but needle and
/// sentence).
TaskPrompt make_prompt(Task task, std::size_t context_length, TaskSplit split, std::uint64_t seed,
                       std::uint64_t index, std::optional<double> depth = std::nullopt);

/// The number of needles in a context of this length: from 4 at 64 words to 24 at 1,024.
std::size_t needles_for_context(std::size_t context_length);

std::string task_text(const std::vector<TaskWord>& words);

}  // namespace blockscope
