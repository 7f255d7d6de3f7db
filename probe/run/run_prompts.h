// From the user's prompts (--prompt, --prompts, --input-ids) to requests of the decoder. Each has
// the name, answer and metric for recording and scoring.
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
  const CLI::App* command = nullptr;   // shows which options were given
  std::vector<std::string> prompts;    // --prompt
  std::string file;                    // --prompts
  std::vector<std::string> input_ids;  // --input-ids "1,2,3"
  std::string metric = "exact_match";  // for lines with an answer and no metric
  int64_t limit = 0;                   // 0: all
  bool chat = false;                   // wrap --prompt texts as a user message
  bool no_thinking = false;
  std::string regions;  // --regions
};
void add_prompt_flags(CLI::App& app, PromptFlags& flags);
/// --regions, for commands that record or change attention by region.
void add_regions_option(CLI::App& app, PromptFlags& flags);
/// Throws UsageError for an option that the given prompts would ignore.
void check_prompt_flags(const CLI::App& app, const PromptFlags& flags);

inline constexpr std::uint64_t kMostPrompts = 10'000;                   ///< most generated prompts
inline constexpr std::uint64_t kMostContext = std::uint64_t{1} << 20U;  ///< most tokens of each

struct RunPrompt {
  std::string name;
  std::string task;  // from the line of the file; empty: none
  std::vector<std::string> answers;
  std::optional<Metric> metric;  // set when there are answers
  DecodeRequest request;         // sequence = index in the run
};

/// The requests of prompts [first, first + batch_size): one batch of the run.
std::vector<DecodeRequest> batch_requests(const std::vector<RunPrompt>& prompts, size_t first,
                                          int64_t batch_size);

/// The tokenizer of the checkpoint; nullopt if it has none (then prompts must be token ids).
std::optional<Tokenizer> load_tokenizer(const LoadedModel& model);

/// Loads the prompts and checks them against options and model. Throws UsageError (also for an
/// option that no prompt needs), PromptError, CheckpointError.
std::vector<RunPrompt> load_prompts(const PromptFlags& flags, const LoadedModel& model,
                                    const Tokenizer* tokenizer, int64_t default_gen_length,
                                    const DecodeOptions& options);

/// The text that a run generated, up to the first stop token and without special tokens. Without a
/// tokenizer: the ids, separated by blanks.
std::string generated_text(const std::vector<int64_t>& generated, const DecodeOptions& options,
                           const Tokenizer* tokenizer);

}  // namespace blockscope
