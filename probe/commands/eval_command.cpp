#include "probe/commands/eval_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/files/command_files.h"
#include "probe/decode/gen_length.h"
#include "probe/run/run_description.h"
#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"
#include "probe/strategies/strategy_table.h"
#include "probe/tasks/task_generator.h"
#include "probe/text/prompts.h"

namespace blockscope {
namespace {

constexpr size_t kDepthBins = 5;
struct EvalFlags {
  ModelFlags model;
  DecodingFlags decoding;
  std::string policy = "exact";  // a choice as text
  std::vector<std::string> interventions;
  std::vector<std::string> tasks{kTaskNames.begin(), kTaskNames.end()};
  std::vector<int64_t> contexts{256, 512, 1024};
  int64_t per_cell = 30;
  uint64_t task_seed = 1;
  std::string backbone;
  std::string json_path;
  bool force = false;
  bool quiet = false;
};

struct Tally {
  int64_t asked = 0;
  int64_t right = 0;
  int64_t tokens = 0;
  int64_t steps = 0;
  void add(const Tally& other) {
    asked += other.asked;
    right += other.right;
    tokens += other.tokens;
    steps += other.steps;
  }
  double accuracy() const {
    return asked == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(asked);
  }
};

struct EvalReport {
  std::string model;
  std::string policy;                                      // as text: "flashblock,tau=2"
  std::string strategy;                                    // for people
  nlohmann::json settings;                                 // everything that decides the answers
  std::map<std::pair<std::string, int64_t>, Tally> cells;  // task, context
  std::map<std::pair<int64_t, size_t>, Tally> depths;      // context, depth bin
  double seconds = 0.0;
};

std::vector<TaskPrompt> make_prompts(const EvalFlags& flags) {
  std::vector<TaskPrompt> prompts;
  for (const std::string& name : flags.tasks) {
    const Task task = task_from_name(name);
    for (const int64_t context : flags.contexts) {
      for (int64_t i = 0; i < flags.per_cell; ++i) {
        prompts.push_back(make_prompt(task, static_cast<size_t>(context), TaskSplit::kTest,
                                      flags.task_seed, static_cast<uint64_t>(i)));
      }
    }
  }
  return prompts;
}

DecodeRequest make_request(const TaskPrompt& prompt, const Tokenizer& tokenizer, int64_t sequence,
                           int64_t gen_length) {
  const std::vector<TokenId> ids = tokenizer.encode(prompt.prompt, false);
  DecodeRequest request;
  request.sequence = sequence;
  request.prompt.assign(ids.begin(), ids.end());
  request.gen_length = gen_length;
  request.prompt_hash = prompt_hash(ids);
  return request;
}

nlohmann::json settings_of(const EvalFlags& flags, const LoadedModel& model,
                           const DecodeOptions& decode, const ChosenPolicy& policy) {
  nlohmann::json settings = {
      {"digest", model.digest},
      {"compute_dtype", nlohmann::json::parse(model.model_json()).at("compute_dtype")},
      {"gen_length", flags.decoding.gen_length},
      {"batch_size", flags.decoding.batch_size},
      {"contexts", flags.contexts},
      {"per_cell", flags.per_cell},
      {"task_seed", flags.task_seed}};
  settings.update(nlohmann::json::parse(decoding_json(decode)));
  settings.update(nlohmann::json::parse(policy.settings));
  return settings;
}

/// Counts an answer by its task and context, and by its depth if it has one.
void count_answer(const TaskPrompt& prompt, const DecodeOutcome& outcome, bool correct,
                  int64_t mask_token_id, EvalReport& report) {
  const int64_t masks =
      std::count(outcome.generated.begin(), outcome.generated.end(), mask_token_id);
  const Tally tally{1, correct ? 1 : 0, static_cast<int64_t>(outcome.generated.size()) - masks,
                    outcome.denoising_steps};
  const auto context = static_cast<int64_t>(prompt.context_length);
  report.cells[{kTaskNames[static_cast<size_t>(prompt.task)], context}].add(tally);
  if (prompt.depth < 0.0) return;
  const auto bin = static_cast<size_t>(prompt.depth * static_cast<double>(kDepthBins));
  report.depths[{context, std::min(bin, kDepthBins - 1)}].add(tally);
}

/// `command`: its options must fit this model; null for the backbone, which is not checked.
EvalReport evaluate_model(const CLI::App* command, const EvalFlags& flags, ModelFlags model_flags,
                          const std::vector<TaskPrompt>& prompts, const Environment& environment) {
  const LoadedModel model = load_model(model_flags, environment);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(model);
  if (!tokenizer.has_value()) {
    refuse_without_tokenizer(model.source.folder, "use a checkpoint folder that has it");
  }
  const DecodeOptions decode = decode_options(flags.decoding, model);
  if (command != nullptr) {
    check_decoding_fits(*command, decode);
    check_policy_fits(read_policy(flags.policy, flags.interventions), policy_site(decode),
                      "--policy");
  }
  check_gen_length(flags.decoding.gen_length, decode);
  const PolicyOptions chosen = read_policy(flags.policy, flags.interventions);
  check_regions(chosen.interventions, {});
  if (command != nullptr) note_shared_keys(chosen, model);
  const ChosenPolicy policy = choose_policy(chosen, policy_model(model));
  EvalReport report;
  report.model = model.text();
  report.policy = policy_text(chosen);
  report.strategy = decode.autoregressive() ? "token by token" : strategy_text(decode.unmasking);
  report.settings = settings_of(flags, model, decode, policy);
  Progress progress(flags.quiet);
  const auto begin = std::chrono::steady_clock::now();
  int64_t next_pass = 0;
  size_t right = 0;
  const size_t batch = static_cast<size_t>(flags.decoding.batch_size);
  for (size_t first = 0; first < prompts.size(); first += batch) {
    const size_t last = std::min(prompts.size(), first + batch);
    std::vector<DecodeRequest> requests;
    for (size_t i = first; i < last; ++i) {
      requests.push_back(
          make_request(prompts[i], *tokenizer, static_cast<int64_t>(i), flags.decoding.gen_length));
      check_request(requests.back(), decode, model.config);
    }
    DecodeCallbacks callbacks;
    callbacks.interrupted = [] { return InterruptGuard::signal() != 0; };
    const std::vector<DecodeOutcome> outcomes =
        decode_batch(*model.model, *policy.policy, decode, requests, next_pass, callbacks);
    InterruptGuard::check();
    for (const DecodeOutcome& outcome : outcomes) {
      const TaskPrompt& prompt = prompts[static_cast<size_t>(outcome.sequence)];
      const std::string text = generated_text(outcome.generated, decode, &*tokenizer);
      const bool correct = exact_match(text, prompt.answer) == 1.0;
      right += correct ? 1 : 0;
      count_answer(prompt, outcome, correct, decode.mask_token_id, report);
    }
    progress.update(static_cast<double>(last) / static_cast<double>(prompts.size()),
                    fmt::format("{}/{} prompts · accuracy {:.3f}", last, prompts.size(),
                                static_cast<double>(right) / static_cast<double>(last)));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

void print_report(const EvalReport& report, const EvalFlags& flags) {
  say("{}: policy {}, {}\n{:<12}", report.model, report.policy, report.strategy, "task");
  for (const int64_t context : flags.contexts) say("{:>10}", context);
  say("{:>10}{:>8}\n", "all", "n");
  Tally total;
  for (const std::string& task : flags.tasks) {
    say("{:<12}", task);
    Tally row;
    for (const int64_t context : flags.contexts) {
      const Tally& cell = report.cells.at({task, context});
      row.add(cell);
      say("{:>9.1f}%", cell.accuracy() * 100.0);
    }
    total.add(row);
    say("{:>9.1f}%{:>8}\n", row.accuracy() * 100.0, row.asked);
  }
  say("needle depth, tasks that ask for something in the context\n{:<12}", "depth");
  for (const int64_t context : flags.contexts) say("{:>10}", context);
  say("\n");
  for (size_t bin = 0; bin < kDepthBins; ++bin) {
    say("{:<12}", fmt::format("{:.1f}-{:.1f}", static_cast<double>(bin) / kDepthBins,
                              static_cast<double>(bin + 1) / kDepthBins));
    for (const int64_t context : flags.contexts) {
      const auto cell = report.depths.find({context, bin});
      if (cell == report.depths.end()) {
        say("{:>10}", "-");
      } else {
        say("{:>9.1f}%", cell->second.accuracy() * 100.0);
      }
    }
    say("\n");
  }
  say("all: {:.1f}% of {} prompts right, {:.2f} tokens a step, {:.1f} tokens/s\n",
      total.accuracy() * 100.0, total.asked,
      static_cast<double>(total.tokens) / static_cast<double>(std::max<int64_t>(total.steps, 1)),
      static_cast<double>(total.tokens) / std::max(report.seconds, 1e-9));
}

nlohmann::json to_json(const EvalReport& report) {
  nlohmann::json json = {
      {"model", report.model}, {"settings", report.settings}, {"seconds", report.seconds}};
  for (const auto& [key, tally] : report.cells) {
    json["cells"].push_back({{"task", key.first},
                             {"context", key.second},
                             {"asked", tally.asked},
                             {"right", tally.right},
                             {"tokens", tally.tokens},
                             {"steps", tally.steps}});
  }
  for (const auto& [key, tally] : report.depths) {
    json["depths"].push_back({{"context", key.first},
                              {"bin", key.second},
                              {"bins", kDepthBins},
                              {"asked", tally.asked},
                              {"right", tally.right}});
  }
  return json;
}

void check_flags(const CLI::App& command, const EvalFlags& flags) {
  check_decoding_flags(flags.decoding);
  (void)read_policy(flags.policy, flags.interventions);
  refuse_idle(command, "--force", !flags.json_path.empty(), "--json");
  for (const std::string& name : flags.tasks) task_from_name(name);
}

void run_eval(const CLI::App& command, const EvalFlags& flags, const Environment& environment) {
  const InterruptGuard guard;  // before the output: a signal must not leave a partial one
  std::optional<OutputFile> output;
  CommandFiles files;
  const PolicyOptions policy = read_policy(flags.policy, flags.interventions);
  files.reads(policy.reuse_file);
  for (const Intervention& one : policy.interventions) files.reads_trace(one.trace);
  for (const std::string& file : flags.decoding.files()) files.reads(file);
  reads_model(files, flags.model, environment);
  if (!flags.backbone.empty()) {
    reads_model(files, flags_of_backbone(flags.model, flags.backbone), environment);
  }
  if (!flags.json_path.empty()) output = files.open(flags.json_path, flags.force);
  const std::vector<TaskPrompt> prompts = make_prompts(flags);
  std::vector<EvalReport> reports;
  reports.push_back(evaluate_model(&command, flags, flags.model, prompts, environment));
  print_report(reports.back(), flags);
  if (!flags.backbone.empty()) {
    ModelFlags backbone = flags_of_backbone(flags.model, flags.backbone);
    backbone.overrides = {};  // autoregressive: no blocks and no mask
    EvalFlags exact = flags;
    exact.policy = "exact";
    exact.interventions.clear();
    reports.push_back(evaluate_model(nullptr, exact, backbone, prompts, environment));
    print_report(reports.back(), flags);
  }
  if (!output) return;
  nlohmann::json json = nlohmann::json::array();
  for (const EvalReport& report : reports) json.push_back(to_json(report));
  output->write(json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  output->commit();
}

}  // namespace

void add_eval_command(CLI::App& app, const Environment& environment) {
  auto flags = std::make_shared<EvalFlags>();
  flags->decoding.gen_length = 32;
  flags->decoding.batch_size = 8;
  CLI::App* command = app.add_subcommand("eval", "Score a checkpoint on generated tasks");
  command->footer(
      "Example: blockscope eval models/needle --backbone models/needle/backbone --per-cell 30\n"
      "Training never uses the seeds of these prompts.");
  add_model_flags(*command, flags->model);
  add_decoding_flags(*command, flags->decoding);
  add_policy_option(*command, flags->policy);
  add_intervene_option(*command, flags->interventions);
  command->add_option("--tasks", flags->tasks, "Ask these tasks, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--contexts", flags->contexts, "Use these context lengths in tokens")
      ->delimiter(',')
      ->check(whole_number(64, kMostContext))
      ->capture_default_str();
  command
      ->add_option("--per-cell", flags->per_cell,
                   "Decode this many prompts per task and context length")
      ->check(whole_number(1, kMostPrompts))
      ->capture_default_str();
  command->add_option("--task-seed", flags->task_seed, "Set the seed of the prompts")
      ->check(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  command->add_option("--backbone", flags->backbone, "Also score this autoregressive checkpoint");
  command->add_option("--json", flags->json_path, "Write the numbers to this file");
  command->add_flag("--force", flags->force, "Replace an existing output");
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress");
  command->callback([flags, command, environment] {
    check_flags(*command, *flags);
    run_eval(*command, *flags, environment);
  });
}

}  // namespace blockscope
