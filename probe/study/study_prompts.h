// The prompts of a study: given by the user, or generated with an exact length and depth.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probe/run/run_prompts.h"

namespace blockscope {

struct StudyPromptFlags {
  PromptFlags given;               // --prompt, --prompts, --input-ids
  std::vector<std::string> tasks;  // generated: kinds of question
  std::vector<int64_t> contexts;   // generated: lengths in tokens of the generator
  int64_t depths = 1;              // generated: places of the needle, from 0 to 1; 1: anywhere
  int64_t per_cell = 1;            // generated: prompts for each task, length and depth
  uint64_t task_seed = 1;

  bool generated() const {
    return given.prompts.empty() && given.file.empty() && given.input_ids.empty();
  }
};

struct StudyPrompt {
  RunPrompt prompt;
  std::string task;     // empty: given
  int64_t context = 0;  // length that the generator was asked for; 0: given
  int64_t depth = -1;   // index of the place, below `depths`; -1: anywhere or given
};

/// The prompts, checked against model and options. Throws what load_prompts throws, CheckpointError
/// without a tokenizer, and UsageError if depths are asked for and a task has no place in the
/// context.
std::vector<StudyPrompt> study_prompts(const StudyPromptFlags& flags, const LoadedModel& model,
                                       const Tokenizer* tokenizer, int64_t gen_length,
                                       const DecodeOptions& options);

}  // namespace blockscope
