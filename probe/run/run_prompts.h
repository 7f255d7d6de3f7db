// From what the user gave (--prompt, --prompts, --input-ids) to requests of the decoder, each with
// the name, answer and metric it is recorded and scored with.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/run/run_flags.h"
#include "probe/text/chat_template.h"
#include "probe/text/metrics.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

struct PromptFlags {
  const CLI::App* command = nullptr;   // to tell a given option from the default
  std::vector<std::string> prompts;    // --prompt
  std::string file;                    // --prompts
  std::vector<std::string> input_ids;  // --input-ids "1,2,3"
  std::string metric = "exact_match";  // for lines with an answer and no metric
  int64_t limit = 0;                   // 0: all
  bool chat = false;                   // wrap --prompt texts as a user message
  bool no_thinking = false;
};
void add_prompt_flags(CLI::App& app, PromptFlags& flags);
/// Throws UsageError for an option that the given prompts would ignore.
void check_prompt_flags(const CLI::App& app, const PromptFlags& flags);

inline constexpr std::uint64_t kMostPrompts = 10'000;                   ///< that are made for a run
inline constexpr std::uint64_t kMostContext = std::uint64_t{1} << 20U;  ///< tokens of one of them

struct RunPrompt {
  std::string name;
  std::string task;  // as the line has it; empty: none
  std::vector<std::string> answers;
  std::optional<Metric> metric;  // set when there are answers
  DecodeRequest request;         // sequence = index in the run
};

/// The requests of prompts [first, first + batch_size): one batch of the run.
std::vector<DecodeRequest> batch_requests(const std::vector<RunPrompt>& prompts, size_t first,
                                          int64_t batch_size);

/// The tokenizer of the checkpoint; nullopt when it has none (then only token ids can be given).
std::optional<Tokenizer> load_tokenizer(const LoadedModel& model);

/// Checked against options and model. Throws UsageError (also for an option that none of the
/// prompts needs), PromptError, CheckpointError.
std::vector<RunPrompt> load_prompts(const PromptFlags& flags, const LoadedModel& model,
                                    const Tokenizer* tokenizer, int64_t default_gen_length,
                                    const DecodeOptions& options);

/// What a run produced as text: cut at the first stop token, special tokens dropped. Without a
/// tokenizer: the ids, separated by blanks.
std::string generated_text(const std::vector<int64_t>& generated, const DecodeOptions& options,
                           const Tokenizer* tokenizer);

}  // namespace blockscope
