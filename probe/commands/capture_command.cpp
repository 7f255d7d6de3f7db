#include "probe/commands/capture_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "cmake/build_info/build_info.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/printable.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/command_files.h"
#include "decode_record/error.h"
#include "decode_record/sha256.h"
#include "decode_record/text.h"
#include "decode_record/trace_reader.h"
#include "kernels/ops.h"
#include "probe/run/capture_plan.h"
#include "probe/run/capture_run.h"
#include "probe/run/replay_source.h"

namespace blockscope {
namespace {

constexpr std::chrono::seconds kLockPatience{5};

struct CaptureFlags {
  ModelFlags model;
  PromptFlags prompts;
  DecodingFlags decoding;
  PolicyFlags policy;
  RecordFlags record;
  std::string output;
  std::string replay;
  bool force = false;
  bool resume = false;
  bool dry_run = false;
  bool no_space_check = false;
  bool quiet = false;
};

/// run.h5 -> run.r0003.h5 when several ranks share the run.
std::string rank_path(const std::string& output, const Environment& environment) {
  if (environment.world_size == 1) return output;
  std::filesystem::path path(output);
  const std::string extension = path.extension().string();
  path.replace_extension(fmt::format(".r{:04d}{}", environment.rank, extension));
  return path.string();
}

void keep_share(std::vector<RunPrompt>& prompts, const Environment& environment) {
  if (environment.world_size == 1) return;
  std::vector<RunPrompt> share;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (static_cast<int64_t>(i) % environment.world_size != environment.rank) continue;
    prompts[i].request.sequence = static_cast<int64_t>(share.size());
    share.push_back(std::move(prompts[i]));
  }
  prompts = std::move(share);
}

/// Of everything that a prompt brings to the run and to its trace.
std::string digest_of(const std::vector<RunPrompt>& prompts) {
  nlohmann::json all = nlohmann::json::array();
  for (const RunPrompt& prompt : prompts) {
    nlohmann::json replay = nlohmann::json::array();
    for (const ReplayStep& step : prompt.request.replay) {
      replay.push_back({step.block, step.positions, step.tokens});
    }
    all.push_back({prompt.name, prompt.request.prompt, prompt.request.gen_length, prompt.answers,
                   prompt.metric.has_value() ? metric_name(*prompt.metric) : "", replay});
  }
  return sha256_hex(all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string run_json(const CaptureFlags& flags, const DecodeOptions& decode,
                     const ChosenPolicy& policy, const RecordFilter& filter,
                     const std::vector<RunPrompt>& prompts, const Environment& environment,
                     const std::string& command_line) {
  const auto& build = build_info();
  nlohmann::json json = {
      {"command_line", command_line},
      {"version", build.version},
      {"git", build.git_describe},
      {"libtorch", build.torch_pin},
      {"instruction_set", instruction_set()},
      {"policy", policy.policy->name()},
      {"decoding", decode.autoregressive() ? "autoregressive" : "block_diffusion"},
      {"strategy", strategy_name(decode.unmasking.strategy)},
      {"block_length", decode.block_length()},
      {"denoising_steps", decode.unmasking.denoising_steps},
      {"threshold", decode.unmasking.threshold},
      {"eb_threshold", decode.unmasking.eb_threshold},
      {"factor", decode.unmasking.factor},
      {"temperature", decode.sampling.temperature},
      {"top_k", decode.sampling.top_k},
      {"top_p", decode.sampling.top_p},
      {"seed", decode.sampling.seed},
      {"stop_ids", decode.stop_ids},
      {"gen_length", flags.decoding.gen_length},
      {"batch_size", flags.decoding.batch_size},
      {"shadow", decode.shadow},
      {"replay", flags.replay},
      {"rank", environment.rank},
      {"world_size", environment.world_size},
  };
  if (policy.tau.has_value()) {
    json["tau"] = *policy.tau;
    json["reuse_file"] = flags.policy.reuse_file;
    json["reuse_digest"] = policy.reuse_digest;
  }
  json["recorded_steps"] = filter.steps;
  json["recorded_blocks"] = filter.blocks;
  json["recorded_sequences"] = filter.sequences;
  json["num_prompts"] = prompts.size();
  json["prompts_digest"] = digest_of(prompts);
  return json.dump();
}

std::vector<std::string> vocabulary_pieces(const Tokenizer* tokenizer, int64_t vocab_size) {
  std::vector<std::string> pieces;
  if (tokenizer == nullptr) return pieces;
  for (int64_t id = 0; id < vocab_size; ++id) {
    pieces.push_back(tokenizer->token_bytes(static_cast<TokenId>(id)));
  }
  return pieces;
}

void print_outcome(const CaptureOutcome& result) {
  const std::string verdict =
      std::isnan(result.score) ? "" : fmt::format(" · score {:.2f}", result.score);
  const std::string masks =
      result.outcome.masks_left == 0
          ? ""
          : fmt::format(" · {} left", plural(result.outcome.masks_left, "mask"));
  say("── {} · {}{}{}\n{}\n", printable(result.prompt.name),
      plural(result.outcome.denoising_steps, "step"), verdict, masks, printable(result.text));
  std::fflush(stdout);
}

void print_plan(const CaptureFlags& flags, const LoadedModel& model, const CaptureCost& cost,
                size_t num_prompts, const std::string& output) {
  note("{}", printable(resolved_table(model.config)));
  note("{}, level {}: {} will take at most {}; memory: weights {}, KV cache {}, recorder {}\n",
       plural(static_cast<int64_t>(num_prompts), "prompt"), flags.record.level, output,
       format_bytes(static_cast<double>(cost.file_bytes)),
       format_bytes(static_cast<double>(model.checkpoint_bytes)),
       format_bytes(static_cast<double>(cost.kv_cache_bytes)),
       format_bytes(static_cast<double>(cost.recorder_bytes)));
}

void print_totals(const CaptureTotals& totals, const std::string& path) {
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  say("{}: {}, {} in {}, {:.1f} tokens/s, {}", path, plural(totals.sequences, "sequence"),
      plural(totals.tokens, "token"), plural(totals.denoising_rows, "denoising step"),
      static_cast<double>(totals.tokens) / std::max(totals.seconds, 1e-9), format_bytes(bytes));
  if (totals.scored > 0) {
    say(", mean score {:.3f} over {}", totals.score_sum / static_cast<double>(totals.scored),
        totals.scored);
  }
  say("\n");
}

/// Whether there is a run to go on with. An empty `.partial` is none: a writer gives its file that
/// name when the datasets are there, so nobody's rows are in it.
bool resumes(const CaptureFlags& flags, const std::string& output) {
  const std::string partial = output + ".partial";
  std::error_code error;
  return flags.resume && std::filesystem::exists(partial, error) &&
         !(std::filesystem::is_regular_file(partial, error) &&
           std::filesystem::file_size(partial, error) == 0);
}

void discard_empty_partial(const CaptureFlags& flags, const std::string& output) {
  const std::string partial = output + ".partial";
  if (!flags.resume || !std::filesystem::exists(partial)) return;
  note("note: {}: an empty file, no run to resume; starting afresh\n", partial);
  std::filesystem::remove(partial);
}

/// Everything that decides a token must be as in the run that was cut: a trace holds one run.
void check_same_run(const std::string& partial, const TraceMeta& meta) {
  const TraceMeta before = TraceReader(partial).info().meta;
  const auto compare = [&](const std::string& old_text, const std::string& new_text,
                           std::initializer_list<const char*> keys) {
    const auto was = nlohmann::json::parse(old_text, nullptr, /*allow_exceptions=*/false);
    const auto is = nlohmann::json::parse(new_text);
    for (const char* key : keys) {
      if (!was.is_object() || !was.contains(key)) continue;  // from a build that didn't say
      const nlohmann::json& old_value = was[key];
      const nlohmann::json new_value = is.value(key, nlohmann::json());
      if (old_value == new_value) continue;
      throw UsageError(
          fmt::format("--resume: {}: {} was {}, and is {} now. HINT: give the options "
                      "of the run that was cut, or another -o",
                      partial, key, old_value.dump(), new_value.dump()));
    }
  };
  if (before.level != meta.level) {
    throw UsageError(
        fmt::format("--resume: {}: level was {}, and is {} now. HINT: give the options "
                    "of the run that was cut, or another -o",
                    partial, to_string(before.level), to_string(meta.level)));
  }
  compare(before.model_json, meta.model_json, {"digest", "compute_dtype"});
  compare(before.run_json, meta.run_json,
          {"decoding",
           "policy",
           "tau",
           "reuse_file",
           "reuse_digest",
           "strategy",
           "block_length",
           "denoising_steps",
           "threshold",
           "eb_threshold",
           "factor",
           "temperature",
           "top_k",
           "top_p",
           "seed",
           "stop_ids",
           "batch_size",
           "shadow",
           "replay",
           "gen_length",
           "recorded_steps",
           "recorded_blocks",
           "recorded_sequences",
           "num_prompts",
           "prompts_digest",
           "rank",
           "world_size"});
}

/// A reader holds HDF5's lock only while it opens the file, or as long as it lives when it opened
/// it without SWMR: waits a little before it gives up.
TraceWriter resume_when_unlocked(const std::string& output, const TraceMeta& meta,
                                 ResumeState& state) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + kLockPatience;
  bool told = false;
  while (true) {
    try {
      check_same_run(output + ".partial", meta);
      return TraceWriter::resume(output, meta, state);
    } catch (const TraceLocked&) {
      if (Clock::now() >= deadline || InterruptGuard::signal() != 0) throw;
    }
    if (!told) {
      note("note: {}.partial: another process holds its lock; waiting up to {} s\n", output,
           kLockPatience.count());
    }
    told = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

TraceWriter open_writer(const CaptureFlags& flags, const std::string& output, const TraceMeta& meta,
                        ResumeState& state) {
  if (resumes(flags, output)) return resume_when_unlocked(output, meta, state);
  TraceWriterOptions options;
  options.force = flags.force;
  return TraceWriter(output, meta, options);
}

/// Options that this run would ignore.
void check_flags(const CLI::App& command, const CaptureFlags& flags) {
  check_policy_flags(command, flags.policy);
  check_record_flags(command, flags.record);
  if (flags.replay.empty()) {
    check_decoding_flags(command, flags.decoding);
    check_prompt_flags(command, flags.prompts);
    return;
  }
  for (const char* option :
       {"--prompt", "--prompts", "--input-ids", "--limit", "--metric", "--chat", "--no-thinking"}) {
    if (command.get_option(option)->count() == 0) continue;
    throw UsageError(fmt::format(
        "--replay: brings its own prompts, and {} does nothing. HINT: leave it out", option));
  }
}

void capture(CaptureFlags flags, const Environment& environment, const std::string& command_line) {
  const std::string output = rank_path(flags.output, environment);
  if (flags.resume && flags.force) {
    throw UsageError("--resume and --force contradict each other: give one of them");
  }
  if (flags.resume && std::filesystem::exists(output)) {
    if (std::filesystem::exists(output + ".partial")) {
      throw UsageError(fmt::format(
          "--resume: {} exists beside {}.partial, and finishing would replace it. HINT: move one "
          "of the two away",
          output, output));
    }
  }
  const bool finished = flags.resume && std::filesystem::exists(output);
  // Long before the file is opened: nobody should wait for a model to hear that it exists.
  if (!finished && !resumes(flags, output) && !flags.dry_run) {
    discard_empty_partial(flags, output);
    check_trace_target(output, flags.force);
  }
  CommandFiles files;
  files.reads(flags.prompts.file);
  files.reads(flags.policy.reuse_file);
  files.reads_trace(flags.replay);
  files.reads_checkpoint(
      resolve_model(flags.model.model, flags.model.revision, environment.hub).folder);
  for (const std::string& name : {output, output + ".partial"}) files.reserve(name, true);
  ReplaySource replay;
  if (!flags.replay.empty()) {
    replay = read_replay(flags.replay);
    ModelOverrides& overrides = flags.model.overrides;
    if (!overrides.mask_token_id) {
      overrides.mask_token_id = replay.mask_token_id;
      overrides.mask_source = "trace of --replay";
    }
    if (!overrides.block_length) {
      overrides.block_length = replay.block_length;
      overrides.block_source = "trace of --replay";
    }
  }
  const LoadedModel model = load_model(flags.model, environment);
  DecodeOptions decode = decode_options(flags.decoding, model.config);
  decode.shadow = flags.policy.shadow;
  const ChosenPolicy policy = choose_policy(flags.policy, model);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(model);
  const Tokenizer* tokenizer_or_null = tokenizer.has_value() ? &*tokenizer : nullptr;
  std::vector<RunPrompt> prompts;
  if (flags.replay.empty()) {
    prompts =
        load_prompts(flags.prompts, model, tokenizer_or_null, flags.decoding.gen_length, decode);
  } else {
    prompts = std::move(replay.prompts);
    for (const RunPrompt& prompt : prompts) check_request(prompt.request, decode, model.config);
  }
  keep_share(prompts, environment);

  RecorderOptions recorder = recorder_options(flags.record, flags.policy, model, decode);
  check_filter(recorder, decode, prompts);
  recorder.meta.run_json =
      run_json(flags, decode, policy, recorder.filter, prompts, environment, command_line);
  recorder.meta.pieces = vocabulary_pieces(tokenizer_or_null, model.config.vocab_size);
  if (finished) {  // by this run, or the caller takes another one's trace for it
    check_same_run(output, recorder.meta);
    fmt::print("{}: complete, nothing to resume\n", output);
    return;
  }
  const CaptureCost cost =
      capture_cost(recorder, decode, prompts, flags.decoding.batch_size, model);
  if (!flags.quiet) print_plan(flags, model, cost, prompts.size(), output);
  if (flags.dry_run) return;
  if (!flags.no_space_check) {
    check_free_space(output, cost.file_bytes);
    check_memory(cost, model.checkpoint_bytes, available_memory());
  }

  // From here to the end of the file: a signal must not cut the writer short.
  const InterruptGuard guard;
  ResumeState state;
  TraceWriter writer = open_writer(flags, output, recorder.meta, state);
  const CaptureRun run{
      model, decode, tokenizer_or_null, *policy.policy, flags.decoding.batch_size, flags.quiet};
  const CaptureTotals totals =
      run_capture(run, recorder, prompts, state, writer, [&](const CaptureOutcome& result) {
        if (!flags.quiet) print_outcome(result);
      });
  if (totals.interrupted) {
    writer.suspend();
    throw InterruptedError(
        fmt::format("{} rows are safe in {}. HINT: the same command with --resume goes on",
                    writer.committed(), writer.partial_path()));
  }
  writer.finish();
  print_totals(totals, output);
}

}  // namespace

void add_capture_command(CLI::App& app, const Environment& environment,
                         const std::string& command_line) {
  auto flags = std::make_shared<CaptureFlags>();
  CLI::App* command =
      app.add_subcommand("capture", "Decode prompts with a checkpoint and record a trace");
  command->footer(
      "Example: blockscope capture models/needle --prompts models/needle/demo.jsonl \\\n"
      "           --record outputs -o run.h5\n"
      "The file is run.h5.partial while it is written; every committed row in it is readable.");
  add_model_flags(*command, flags->model);
  add_prompt_flags(*command, flags->prompts);
  command->add_option("--replay", flags->replay,
                      "Feed the trajectories of this trace instead of own choices");
  add_decoding_flags(*command, flags->decoding);
  add_policy_flags(*command, flags->policy);
  add_record_flags(*command, flags->record);
  command->add_option("-o,--output", flags->output, "Trace to write")->required();
  command->add_flag("--force", flags->force, "Replace an existing trace");
  command->add_flag("--resume", flags->resume, "Go on with a trace that was cut off");
  command->add_flag("--dry-run", flags->dry_run, "Print what would run and its size, then stop");
  command->add_flag("--no-space-check", flags->no_space_check,
                    "Start without enough free space or memory");
  command->add_flag("-q,--quiet", flags->quiet, "Only the last line");
  command->callback([flags, command, environment, command_line] {
    check_flags(*command, *flags);
    capture(*flags, environment, command_line);
  });
}

}  // namespace blockscope
