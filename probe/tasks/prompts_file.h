// Task prompts as JSONL for `capture --prompts` and `eval`: one object a line with id, prompt,
// answer, metric ("exact_match"), task, context_length and depth. No LibTorch here.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "probe/tasks/task_generator.h"

namespace blockscope {

struct PromptsSpec {
  std::size_t count = 20;  // in total; pairs of (context length, task) take turns
  std::vector<std::size_t> contexts = {1024};
  std::vector<Task> tasks;  // empty: all
  TaskSplit split = TaskSplit::kTest;
  std::uint64_t seed = 1;
};

std::vector<TaskPrompt> make_prompts(const PromptsSpec& spec);
std::string prompt_json(const TaskPrompt& prompt);
/// Writes the prompts one at a time, and stops if `out` fails. `before_each` gets the number of
/// prompts written so far.
void write_prompts(
    const PromptsSpec& spec, std::ostream& out,
    const std::function<void(std::size_t written)>& before_each = [](std::size_t) {});

}  // namespace blockscope
