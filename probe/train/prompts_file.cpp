#include "probe/train/prompts_file.h"

#include <nlohmann/json.hpp>

namespace blockscope {

std::vector<TaskPrompt> make_prompts(const PromptsSpec& spec) {
  std::vector<Task> tasks = spec.tasks;
  if (tasks.empty()) {
    for (std::size_t all = 0; all < kNumTasks; ++all) tasks.push_back(static_cast<Task>(all));
  }
  std::vector<TaskPrompt> prompts;
  for (std::size_t i = 0; i < spec.count; ++i) {
    const Task task = tasks[i % tasks.size()];
    const std::size_t turn = i / tasks.size();
    const std::size_t context = spec.contexts[turn % spec.contexts.size()];
    prompts.push_back(
        make_prompt(task, context, spec.split, spec.seed, turn / spec.contexts.size()));
  }
  return prompts;
}

std::string prompt_json(const TaskPrompt& prompt) {
  nlohmann::ordered_json line;
  line["id"] = prompt.id;
  line["prompt"] = prompt.prompt;
  line["answer"] = prompt.answer;
  line["metric"] = "exact_match";
  line["task"] = kTaskNames[static_cast<std::size_t>(prompt.task)];
  line["context_length"] = prompt.context_length;
  if (prompt.depth >= 0.0) line["depth"] = prompt.depth;
  return line.dump();
}

void write_prompts(const PromptsSpec& spec, std::ostream& out) {
  for (const TaskPrompt& prompt : make_prompts(spec)) out << prompt_json(prompt) << '\n';
}

}  // namespace blockscope
