#include "probe/run/run_prompts.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "probe/checkpoint/rope.h"
#include "probe/decode/gen_length.h"
#include "probe/run/prompt_regions.h"
#include "probe/text/prompts.h"

namespace blockscope {
namespace {

std::vector<TokenId> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  std::istringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ',')) {
    TokenId id = 0;
    part.erase(0, part.find_first_not_of(' '));
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size()) {
      throw UsageError(
          fmt::format("--input-ids: expected ids separated by commas, got '{}'", part));
    }
    ids.push_back(id);
  }
  return ids;
}

PromptSet gather(const PromptFlags& flags) {
  PromptSet set;
  if (!flags.file.empty()) set = read_prompts(std::filesystem::path(flags.file));
  const auto add = [&](PromptInput input) {
    Prompt prompt;
    prompt.id = fmt::format("prompt-{}", set.prompts.size());
    prompt.input = std::move(input);
    set.prompts.push_back(std::move(prompt));
  };
  for (const std::string& text : flags.prompts) {
    if (flags.chat) {
      add(std::vector<ChatMessage>{{"user", text}});
    } else {
      add(text);
    }
  }
  for (const std::string& text : flags.input_ids) add(parse_ids(text));
  if (set.prompts.empty()) {
    throw UsageError(
        "no prompt given. HINT: give --prompt TEXT, --prompts FILE.jsonl or "
        "--input-ids 1,2,3");
  }
  if (flags.limit > static_cast<int64_t>(set.prompts.size())) {
    note("note: --limit {}: there are no more than {} prompts\n", flags.limit, set.prompts.size());
  } else if (flags.limit > 0) {
    set.prompts.resize(static_cast<size_t>(flags.limit));
  }
  return set;
}

/// `chat`: null if no prompt needs it.
void check_needed(const CLI::App& command, const PromptSet& set, const ChatTemplate* chat) {
  const auto any = [&set](const auto& needs) { return std::ranges::any_of(set.prompts, needs); };
  refuse_idle(command, "--gen-length",
              any([](const Prompt& prompt) { return !prompt.gen_length.has_value(); }),
              "a prompt that names no gen_length of its own");
  refuse_idle(command, "--metric", any([](const Prompt& prompt) {
                return !prompt.answers.empty() && !prompt.metric.has_value();
              }),
              "a prompt that has an answer and names no metric of its own");
  refuse_idle(command, "--no-thinking", chat != nullptr, "--chat, or a prompt with \"messages\"");
  refuse_idle(command, "--no-thinking", chat == nullptr || chat->switches_thinking(),
              "a thinking switch (enable_thinking) in the chat template of the checkpoint");
}

}  // namespace

void add_prompt_flags(CLI::App& app, PromptFlags& flags) {
  flags.command = &app;
  app.add_option("--prompt", flags.prompts, "Decode this prompt (may be given more than once)");
  app.add_option(
      "--prompts", flags.file,
      "Decode the lines of a JSONL file: prompt, messages or input_ids; id, task, answer, "
      "metric, gen_length");
  app.add_option("--input-ids", flags.input_ids, "Decode these token ids, separated by commas");
  app.add_option("--metric", flags.metric,
                 "Metric of lines that name none: exact_match, contains, f1, rouge_l, "
                 "edit_similarity")
      ->capture_default_str();
  app.add_option("--limit", flags.limit, "Decode only the first n prompts (0: all)")
      ->check(whole_number(0))
      ->capture_default_str();
  app.add_flag("--chat", flags.chat, "Put --prompt texts into the checkpoint's chat template");
  app.add_flag("--no-thinking", flags.no_thinking,
               "Switch thinking off in chat templates that have such a switch");
  less_usual(app, "Prompts", {"--input-ids", "--metric", "--no-thinking"});
}

void add_regions_option(CLI::App& app, PromptFlags& flags) {
  app.add_option("--regions", flags.regions,
                 "JSON file that names parts of the prompts, by positions, token or text");
  less_usual(app, "Prompts", {"--regions"});
}

void check_prompt_flags(const CLI::App& app, const PromptFlags& flags) {
  refuse_idle(app, "--metric", !flags.file.empty(), "--prompts, whose lines can have answers");
  refuse_idle(app, "--chat", !flags.prompts.empty(),
              "--prompt (lines of --prompts say \"messages\")");
  refuse_idle(app, "--no-thinking", flags.chat || !flags.file.empty(), "--chat or --prompts");
}

std::vector<DecodeRequest> batch_requests(const std::vector<RunPrompt>& prompts, size_t first,
                                          int64_t batch_size) {
  const size_t last = std::min(prompts.size(), first + static_cast<size_t>(batch_size));
  std::vector<DecodeRequest> requests;
  for (size_t i = first; i < last; ++i) requests.push_back(prompts[i].request);
  return requests;
}

std::optional<Tokenizer> load_tokenizer(const LoadedModel& model) {
  if (!std::filesystem::exists(model.source.folder / "tokenizer.json")) return std::nullopt;
  return Tokenizer::from_directory(model.source.folder);
}

std::vector<RunPrompt> load_prompts(const PromptFlags& flags, const LoadedModel& model,
                                    const Tokenizer* tokenizer, int64_t default_gen_length,
                                    const DecodeOptions& options) {
  const std::optional<Metric> default_metric = parse_metric(flags.metric);
  if (!default_metric.has_value()) {
    throw UsageError(
        fmt::format("--metric: expected one of {}, got '{}'", metric_names(), flags.metric));
  }
  const PromptSet set = gather(flags);
  for (const std::string& warning : set.warnings) note("note: {}\n", warning);
  const bool needs_chat = std::any_of(set.prompts.begin(), set.prompts.end(), [](const Prompt& p) {
    return std::holds_alternative<std::vector<ChatMessage>>(p.input);
  });
  std::optional<ChatTemplate> chat;
  if (needs_chat) chat = ChatTemplate::from_directory(model.source.folder);
  if (flags.command != nullptr) check_needed(*flags.command, set, chat ? &*chat : nullptr);
  ChatOptions chat_options;
  if (flags.no_thinking) chat_options.enable_thinking = false;
  if (chat && chat->reads_date()) {
    note(
        "note: {}: the template puts today's date into the prompts. Another day gives other "
        "tokens\n",
        chat->source());
  }

  RegionFinder finder(
      flags.regions.empty() ? std::vector<RegionRule>() : read_region_rules(flags.regions),
      flags.regions);
  std::vector<std::vector<uint8_t>> parts;

  std::vector<RunPrompt> prompts;
  for (const Prompt& prompt : set.prompts) {
    RunPrompt run;
    run.name = prompt.id;
    run.task = prompt.task;
    run.answers = prompt.answers;
    if (!run.answers.empty())
      run.metric = prompt.metric.has_value() ? prompt.metric : default_metric;
    std::vector<TokenId> ids;
    if (const auto* given = std::get_if<std::vector<TokenId>>(&prompt.input)) {
      ids = *given;
    } else if (tokenizer == nullptr) {
      refuse_without_tokenizer(model.source.folder, "pass --input-ids");
    } else {
      ids = tokenize_prompt(prompt, *tokenizer, chat.has_value() ? &*chat : nullptr, chat_options,
                            model.config.vocab_size,
                            static_cast<size_t>(largest_position_count(model.config)));
    }
    parts.push_back(finder.parts_of(prompt.id, ids, tokenizer,
                                    std::get_if<std::vector<ChatMessage>>(&prompt.input),
                                    chat ? &*chat : nullptr, chat_options));
    run.request.sequence = static_cast<int64_t>(prompts.size());
    run.request.prompt.assign(ids.begin(), ids.end());
    if (!prompt.gen_length.has_value()) check_gen_length(default_gen_length, options);
    run.request.gen_length = prompt.gen_length.value_or(default_gen_length);
    run.request.prompt_hash = prompt_hash(ids);
    try {
      check_request(run.request, options, model.config);
    } catch (const PromptError& error) {
      throw PromptError(prompt.line > 0
                            ? fmt::format("{}:{}: {}", flags.file, prompt.line, error.what())
                            : std::string(error.what()));
    }
    prompts.push_back(std::move(run));
  }
  if (!finder.unplaced().empty()) {
    note(
        "note: prompt {}: a message of the chat is not found among the prompt's tokens, so its "
        "role "
        "is no region. HINT: name its place with --regions\n",
        finder.unplaced());
  }
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i].request.regions = finder.regions(parts[i]);
  return prompts;
}

std::string generated_text(const std::vector<int64_t>& generated, const DecodeOptions& options,
                           const Tokenizer* tokenizer) {
  const auto stop = std::find_first_of(generated.begin(), generated.end(), options.stop_ids.begin(),
                                       options.stop_ids.end());
  std::vector<TokenId> ids;
  for (auto token = generated.begin(); token != stop; ++token) {
    if (*token != options.mask_token_id && *token >= 0) ids.push_back(static_cast<TokenId>(*token));
  }
  if (tokenizer != nullptr) return tokenizer->decode(ids, /*skip_special_tokens=*/true);
  return fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace blockscope
