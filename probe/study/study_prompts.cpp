#include "probe/study/study_prompts.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/decode/gen_length.h"
#include "probe/tasks/task_generator.h"
#include "probe/text/prompts.h"

namespace blockscope {
namespace {

StudyPrompt generated(const TaskPrompt& task, const Tokenizer& tokenizer, int64_t gen_length) {
  StudyPrompt result;
  const std::vector<TokenId> ids = tokenizer.encode(task.prompt, false);
  result.prompt.name = task.id;
  result.prompt.answers = {task.answer};
  result.prompt.metric = Metric::kExactMatch;
  result.prompt.request.prompt.assign(ids.begin(), ids.end());
  result.prompt.request.gen_length = gen_length;
  result.prompt.request.prompt_hash = prompt_hash(ids);
  result.task = kTaskNames[static_cast<size_t>(task.task)];
  result.context = static_cast<int64_t>(task.context_length);
  return result;
}

}  // namespace

std::vector<StudyPrompt> study_prompts(const StudyPromptFlags& flags, const LoadedModel& model,
                                       const Tokenizer* tokenizer, int64_t gen_length,
                                       const DecodeOptions& options) {
  std::vector<StudyPrompt> prompts;
  if (!flags.generated()) {
    for (RunPrompt& prompt : load_prompts(flags.given, model, tokenizer, gen_length, options)) {
      prompts.push_back({std::move(prompt), "", 0, -1});
    }
    return prompts;
  }
  if (tokenizer == nullptr) {
    throw CheckpointError(
        fmt::format("{}: expected tokenizer.json for generated prompts, got none. HINT: give token "
                    "ids with --input-ids or --prompts",
                    model.source.folder.string()));
  }
  check_gen_length(gen_length, options);
  for (const int64_t context : flags.contexts) {
    for (const std::string& name : flags.tasks) {
      const Task task = task_from_name(name);
      uint64_t index = 0;
      for (int64_t d = 0; d < flags.depths; ++d) {
        std::optional<double> depth;
        if (flags.depths > 1) {
          depth = static_cast<double>(d) / static_cast<double>(flags.depths - 1);
        }
        for (int64_t i = 0; i < flags.per_cell; ++i) {
          StudyPrompt prompt =
              generated(make_prompt(task, static_cast<size_t>(context), TaskSplit::kTest,
                                    flags.task_seed, index++, depth),
                        *tokenizer, gen_length);
          if (depth.has_value()) prompt.depth = d;
          check_request(prompt.prompt.request, options, model.config);
          prompts.push_back(std::move(prompt));
        }
      }
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].prompt.request.sequence = static_cast<int64_t>(i);
  }
  return prompts;
}

}  // namespace blockscope
