#include "probe/tasks/prompts_file.h"

#include <nlohmann/json.hpp>

namespace blockscope {

namespace {

/// Prompt `i` of `spec`. `tasks`: the tasks of the spec, or all.
TaskPrompt prompt_at(const PromptsSpec& spec, const std::vector<Task>& tasks, std::size_t i) {
  const std::size_t turn = i / tasks.size();
  return make_prompt(tasks[i % tasks.size()], spec.contexts[turn % spec.contexts.size()],
                     spec.split, spec.seed, turn / spec.contexts.size());
}

std::vector<Task> tasks_of(const PromptsSpec& spec) {
  if (!spec.tasks.empty()) return spec.tasks;
  std::vector<Task> tasks;
  for (std::size_t all = 0; all < kNumTasks; ++all) tasks.push_back(static_cast<Task>(all));
  return tasks;
}

}  // namespace

std::vector<TaskPrompt> make_prompts(const PromptsSpec& spec) {
  const std::vector<Task> tasks = tasks_of(spec);
  std::vector<TaskPrompt> prompts;
  for (std::size_t i = 0; i < spec.count; ++i) prompts.push_back(prompt_at(spec, tasks, i));
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

void write_prompts(const PromptsSpec& spec, std::ostream& out,
                   const std::function<void(std::size_t written)>& before_each) {
  const std::vector<Task> tasks = tasks_of(spec);
  for (std::size_t i = 0; i < spec.count && out; ++i) {
    before_each(i);
    out << prompt_json(prompt_at(spec, tasks, i)) << '\n';
  }
}

}  // namespace blockscope
