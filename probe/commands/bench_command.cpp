#include "probe/commands/bench_command.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
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
#include "decode_record/files/scratch_folder.h"
#include "probe/checkpoint/rope.h"
#include "probe/commands/bench_report.h"
#include "probe/commands/draft_comparison.h"
#include "probe/commands/timing_observer.h"
#include "probe/decode/gen_length.h"
#include "probe/decode/sampling.h"
#include "probe/policies/policy_table.h"
#include "probe/record/late_recorder.h"
#include "probe/record/recorder.h"
#include "probe/run/capture_plan.h"
#include "probe/run/run_flags.h"

namespace blockscope {
namespace {

struct BenchFlags {
  ModelFlags model;
  std::string draft;
  PromptFlags prompts;                 // only with --draft
  std::vector<int64_t> block_lengths;  // only with --draft; empty: --block-length, or the draft's
  DecodingFlags decoding;
  RecordFlags record;  // only --predictions
  std::vector<std::string> interventions;
  std::vector<std::string> levels{"off", "trajectory", "summary", "sets", "outputs", "full"};
  int64_t context_length = 1024;
  int64_t runs = 3;
  std::string folder;  // where the traces go; empty: the system's temporary folder
  bool json = false;
  bool quiet = false;
};

constexpr std::array kOfLevels{"--levels", "--context", "--folder", "--predictions", "--intervene"};
constexpr std::array kOfDrafts{"--block-lengths", "--prompt", "--prompts",     "--input-ids",
                               "--metric",        "--limit",  "--no-thinking", "--chat"};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Token ids drawn from the seed, never the mask token.
std::vector<DecodeRequest> make_requests(const BenchFlags& flags, const DecodeOptions& decode,
                                         const ModelConfig& config) {
  std::vector<DecodeRequest> requests;
  for (int64_t s = 0; s < flags.decoding.batch_size; ++s) {
    DecodeRequest request;
    request.sequence = s;
    request.gen_length = flags.decoding.gen_length;
    request.prompt_hash = static_cast<uint64_t>(s);
    for (int64_t i = 0; i < flags.context_length; ++i) {
      const double u =
          uniform_draw(flags.decoding.sampling.seed, {static_cast<uint64_t>(s), 0, 0}, i);
      int64_t id = static_cast<int64_t>(u * static_cast<double>(config.vocab_size));
      if (id == decode.mask_token_id) id = id == 0 ? 1 : id - 1;
      request.prompt.push_back(id);
    }
    check_request(request, decode, config);
    requests.push_back(std::move(request));
  }
  return requests;
}

Timing run_once(const std::string& level, const LoadedModel& model, const DecodeOptions& decode,
                const PolicyOptions& chosen, const std::vector<DecodeRequest>& requests,
                RecordFlags record, const std::filesystem::path& folder) {
  Timing timing;
  const ScratchFolder scratch("blockscope-bench", folder);  // outlives the writer
  const std::string path = (scratch.path() / "run.h5").string();
  std::optional<TraceWriter> writer;
  std::optional<Recorder> recorder;
  std::optional<LateRecorder> late;
  const ChosenPolicy chosen_policy = choose_policy(chosen, policy_model(model));
  const std::unique_ptr<AttentionPolicy>& policy = chosen_policy.policy;
  if (level != "off") {
    record.level = level;
    const RecorderOptions options = recorder_options(record, *policy, 0, model, decode);
    writer.emplace(path, options.meta);
    recorder.emplace(options, *writer);
    for (const DecodeRequest& request : requests) {
      SequenceStart start;
      start.name = fmt::format("bench-{}", request.sequence);
      start.prompt = request.prompt;
      start.gen_length = generated_positions(static_cast<int64_t>(request.prompt.size()),
                                             request.gen_length, decode);
      recorder->begin_sequence(request.sequence, writer->begin_sequence(std::move(start)),
                               static_cast<int64_t>(request.prompt.size()));
    }
    if (records_late(model.device)) late.emplace(*recorder, model.device);
  }
  DecodeObserver* const nearest = late       ? static_cast<DecodeObserver*>(&*late)
                                  : recorder ? &*recorder
                                             : nullptr;
  TimingObserver observer(nearest, timing);
  DecodeCallbacks callbacks;
  callbacks.observer = &observer;
  callbacks.interrupted = [] { return InterruptGuard::signal() != 0; };
  int64_t next_pass = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = decode_batch(*model.model, *policy, decode, requests, next_pass, callbacks);
  InterruptGuard::check();
  if (late) {
    late->drain();
    timing.recorder_waits = late->waits();
  }
  timing.blocks = seconds_since(begin) - timing.prefill;
  if (writer.has_value()) {
    const auto closing = std::chrono::steady_clock::now();
    for (const DecodeOutcome& outcome : outcomes) {
      writer->end_sequence(outcome.sequence, {outcome.reason, "", std::nullopt});
    }
    writer->finish();
    timing.finish = seconds_since(closing);
    timing.file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  }
  return timing;
}

Timing median(std::vector<Timing> timings) {
  std::sort(timings.begin(), timings.end(),
            [](const Timing& a, const Timing& b) { return total(a) < total(b); });
  return timings[timings.size() / 2];
}

nlohmann::json to_json(const std::string& level, const Timing& timing, const Overhead& overhead) {
  return {{"level", level},
          {"overhead", overhead.median},
          {"overhead_least", overhead.least},
          {"overhead_most", overhead.most},
          {"prefill_s", timing.prefill},
          {"blocks_s", timing.blocks},
          {"forward_s", timing.forward},
          {"attention_s", timing.attention},
          {"deciding_s", timing.deciding},
          {"finish_s", timing.finish},
          {"tokens", timing.tokens},
          {"block_passes", timing.block_passes},
          {"denoising_passes", timing.denoising_passes},
          {"file_bytes", timing.file_bytes},
          {"recorder_waits", timing.recorder_waits}};
}

void run_bench(const CLI::App& command, const BenchFlags& flags, const Environment& environment) {
  for (const std::string& level : flags.levels) {
    if (level != "off") parse_record_level(level);
  }
  const std::filesystem::path folder =
      flags.folder.empty() ? temporary_folder() : std::filesystem::path(flags.folder);
  const InterruptGuard guard;  // after a signal the temporary trace must be removed
  const LoadedModel model = load_model(flags.model, environment);
  const DecodeOptions decode = decode_options(flags.decoding, model);
  check_decoding_fits(command, decode, /*draws=*/true);
  if (flags.context_length > largest_position_count(model.config)) {
    throw UsageError(
        fmt::format("--context: expected at most the {0} positions of this model, got {1}. HINT: "
                    "--context {2} leaves half of them to the answer",
                    largest_position_count(model.config), flags.context_length,
                    largest_position_count(model.config) / 2));
  }
  check_gen_length(flags.decoding.gen_length, decode);
  const PolicyOptions policy = read_policy("exact", flags.interventions);
  check_policy_fits(policy, policy_site(decode), "--intervene");
  check_regions(policy.interventions, {});
  for (const Intervention& one : policy.interventions) {
    if (one.trace.empty() && !one.token) continue;
    throw UsageError(fmt::format(
        "--intervene {}: expected one that fits any prompt, because bench makes its own prompts. "
        "HINT: blockscope verify --intervene",
        intervention_text(one)));
  }
  const std::vector<DecodeRequest> requests = make_requests(flags, decode, model.config);

  Progress progress(flags.quiet);
  const double all = static_cast<double>(flags.runs) * static_cast<double>(flags.levels.size());
  double done = 0.0;
  run_once("off", model, decode, policy, requests, flags.record, folder);  // warm-up, not counted
  std::vector<std::vector<Timing>> timings(flags.levels.size());
  // The levels take turns, so that a drift of the machine's speed affects all of them.
  for (int64_t run = 0; run < flags.runs; ++run) {
    for (size_t i = 0; i < flags.levels.size(); ++i) {
      timings[i].push_back(
          run_once(flags.levels[i], model, decode, policy, requests, flags.record, folder));
      progress.update(++done / all,
                      fmt::format("level {} · run {}/{}", flags.levels[i], run + 1, flags.runs));
    }
  }
  progress.clear();
  nlohmann::json json = nlohmann::json::array();
  if (!flags.json) {
    say("{}: context {}, gen length {}, B {}, batch {}, {} threads, median of {}\n",
        flags.model.model, flags.context_length, flags.decoding.gen_length, decode.block_length(),
        flags.decoding.batch_size, at::get_num_threads(), flags.runs);
    say("{}\n", timing_header());
  }
  for (size_t i = 0; i < flags.levels.size(); ++i) {
    const Timing timing = median(timings[i]);
    const Overhead overhead = overhead_of(timings[i], timings[0]);
    if (flags.json) {
      json.push_back(to_json(flags.levels[i], timing, overhead));
      continue;
    }
    say("{}\n", timing_line(flags.levels[i], timing, overhead, timings[i].size()));
  }
  if (flags.json) say("{}\n", json.dump(1));
}

void bench_draft(const CLI::App& command, const BenchFlags& flags, const Environment& environment) {
  const InterruptGuard guard;
  const DraftComparison run =
      compare_with_draft({command, flags.model, flags.draft, flags.prompts, flags.decoding,
                          flags.block_lengths, flags.runs, flags.quiet},
                         environment);
  const std::vector<DraftMeasured> measured = measured_of(run.runs, run.prompts, run.alone);
  say("{}", flags.json ? draft_bench_json(measured, run.facts, run.prompts)
                       : draft_bench_text(measured, run.facts, run.prompts));
}

void check_flags(const CLI::App& command, const BenchFlags& flags) {
  const bool drafted = !flags.draft.empty();
  for (const char* option : kOfDrafts) refuse_idle(command, option, drafted, "--draft");
  if (drafted) {
    for (const char* option : kOfLevels) refuse_idle_beside(command, option, "--draft");
    refuse_idle_beside(command, "--block-length", "--block-lengths");
    check_draft_flags(command);
    check_prompt_flags(command, flags.prompts);
  }
  check_decoding_flags(flags.decoding);
  refuse_idle(command, "--folder",
              std::ranges::any_of(flags.levels, [](const auto& level) { return level != "off"; }),
              "--levels that write a trace");
}

}  // namespace

void add_bench_command(CLI::App& app, const Environment& environment) {
  auto flags = std::make_shared<BenchFlags>();
  flags->decoding.no_stop = true;
  flags->decoding.gen_length = 64;
  CLI::App* command = app.add_subcommand("bench", "Time decoding and recording on this machine");
  command->footer(
      "Example: blockscope bench models/needle --context 1024 --gen-length 64\n"
      "         blockscope bench TARGET --draft DRAFT --prompts prompts.jsonl --block-lengths "
      "8,16\n"
      "Overhead compares each run of a level with the run of the first level in the same turn:\n"
      "the median, the least and the most. The last column is MB written per second.");
  add_model_flags(*command, flags->model);
  command->add_option("--draft", flags->draft,
                      "Compare decoding with this DFlash draft and with the model alone");
  command
      ->add_option("--block-lengths", flags->block_lengths,
                   "With --draft: time rounds of these block lengths, separated by commas")
      ->delimiter(',')
      ->check(whole_number(1));
  add_prompt_flags(*command, flags->prompts);
  add_decoding_flags(*command, flags->decoding);
  command
      ->add_option("--levels", flags->levels,
                   "Time these recorder levels, separated by commas (off: no recorder)")
      ->delimiter(',')
      ->capture_default_str();
  add_predictions_flag(*command, flags->record);
  add_intervene_option(*command, flags->interventions);
  command->add_option("--context", flags->context_length, "Set the prompt length in tokens")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      ->add_option("--runs", flags->runs,
                   "Run each level, or with and without the draft, this often (prints medians)")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_option("--folder", flags->folder, "Write traces into this folder, and remove them");
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress");
  command->callback([flags, command, environment] {
    // Without stop tokens every run takes the same steps. They are used if --stop-id or a draft was
    // given.
    if (command->get_option("--no-stop")->count() == 0) {
      flags->decoding.no_stop = flags->decoding.stop_ids.empty() && flags->draft.empty();
    }
    check_flags(*command, *flags);
    if (flags->draft.empty()) {
      run_bench(*command, *flags, environment);
    } else {
      bench_draft(*command, *flags, environment);
    }
  });
}

}  // namespace blockscope
