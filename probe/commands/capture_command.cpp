#include "probe/commands/capture_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <utility>

#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/files/command_files.h"
#include "probe/draft/draft_cost.h"
#include "probe/run/capture_cost.h"
#include "probe/run/capture_plan.h"
#include "probe/run/capture_resume.h"
#include "probe/run/capture_run.h"
#include "probe/run/replay_source.h"
#include "probe/run/run_description.h"
#include "probe/run/run_failure.h"

namespace blockscope {
namespace {

struct CaptureFlags {
  ModelFlags model;
  std::string draft;
  std::string recorded_model = "draft";
  bool no_draft_cost = false;
  PromptFlags prompts;
  DecodingFlags decoding;
  std::string policy = "exact";  // a choice as text
  std::vector<std::string> interventions;
  bool shadow = false;
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
std::string rank_path(const std::string& output, const Ranks& ranks) {
  if (ranks.alone()) return output;
  std::filesystem::path path(output);
  const std::string extension = path.extension().string();
  path.replace_extension(fmt::format(".r{:04d}{}", ranks.rank, extension));
  return path.string();
}

void keep_share(std::vector<RunPrompt>& prompts, const Ranks& ranks) {
  if (ranks.alone()) return;
  std::vector<RunPrompt> share;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (static_cast<int64_t>(i) % ranks.world_size != ranks.rank) continue;
    prompts[i].request.sequence = static_cast<int64_t>(share.size());
    share.push_back(std::move(prompts[i]));
  }
  prompts = std::move(share);
}

void print_outcome(const CaptureOutcome& result) {
  const std::string verdict =
      std::isnan(result.score) ? "" : fmt::format(" · score {:.2f}", result.score);
  const std::string masks =
      result.outcome.masks_left == 0
          ? ""
          : fmt::format(" · {} left", plural(result.outcome.masks_left, "mask"));
  say("── {} · {}{}{}\n{}\n", result.prompt.name, plural(result.outcome.denoising_steps, "step"),
      verdict, masks, result.text);
  std::fflush(stdout);
}

/// "312.5 tokens/s"; "n/a tokens/s" if nothing was decided.
std::string speed_text(const CaptureTotals& totals) {
  if (totals.tokens == 0) return "n/a tokens/s";
  return fmt::format("{:.1f} tokens/s",
                     static_cast<double>(totals.tokens) / std::max(totals.seconds, 1e-9));
}

void print_plan(const CaptureFlags& flags, const LoadedModel& model, int64_t weight_bytes,
                const CaptureCost& cost, size_t num_prompts, const std::string& output) {
  note_text(resolved_table(model.config));
  note("{}, level {}: {} will take {}; memory: weights {}, {}\n",
       plural(static_cast<int64_t>(num_prompts), "prompt"), flags.record.level, output,
       size_text(cost), format_bytes(static_cast<double>(weight_bytes)), memory_text(cost));
}

void print_totals(const CaptureTotals& totals, const ResumeState& resumed, size_t num_prompts,
                  const std::string& path) {
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  say("{}: ", path);
  if (!resumed.finished.empty()) {
    say("resumed: {} of {} were finished; this run: ", resumed.finished.size(),
        plural(static_cast<int64_t>(num_prompts), "sequence"));
  }
  say("{}, {} in {}, {}, {}", plural(totals.sequences, "sequence"), plural(totals.tokens, "token"),
      plural(totals.denoising_rows, "denoising step"), speed_text(totals), format_bytes(bytes));
  if (totals.scored > 0) {
    say(", mean score {:.3f} over {}", totals.score_sum / static_cast<double>(totals.scored),
        totals.scored);
  }
  say("\n");
}

/// Ends the trace of a failed run. Throws an error that says what is in the trace.
[[noreturn]] void keep_rows(TraceWriter& writer, RunFailure failure,
                            const std::string& next = "the same command with --resume goes on") {
  writer.suspend();
  failure.what +=
      fmt::format("; {} rows are safe in {}", writer.committed(), writer.partial_path());
  failure.hint += failure.hint.empty() ? "" : "; ";
  failure.hint += next;
  throw Error(failure.message());
}

/// The mean context length of a round, if the answers reach their full length.
int64_t mean_context(const std::vector<RunPrompt>& prompts) {
  int64_t sum = 0;
  for (const RunPrompt& prompt : prompts) {
    sum += std::ssize(prompt.request.prompt) + prompt.request.gen_length / 2;
  }
  return sum / std::max<int64_t>(std::ssize(prompts), 1);
}

/// Options that this run would ignore.
void check_flags(const CLI::App& command, const CaptureFlags& flags) {
  const PolicyEntry& policy = policy_entry(read_policy(flags.policy, flags.interventions));
  const std::string& cache = flags.decoding.cache;
  const bool keeps = !cache.empty() && cache_entry(read_cache(cache)).approximates;
  refuse_idle(
      command, "--shadow", policy.name != "exact" || keeps || !flags.interventions.empty(),
      "a policy other than exact, which is its own shadow, --intervene, or a --cache that keeps "
      "entries");
  check_record_flags(command, flags.record);
  refuse_idle(command, "--regions",
              parse_record_level(flags.record.level) >= RecordLevel::summary ||
                  names_region(read_interventions(flags.interventions)),
              "--record summary or above, or --intervene hide_keys,region=");
  if (!flags.draft.empty()) check_draft_flags(command);
  refuse_idle(command, "--recorded-model", !flags.draft.empty(), "--draft");
  refuse_idle(command, "--no-draft-cost", !flags.draft.empty(), "--draft");
  if (flags.replay.empty()) {
    check_decoding_flags(flags.decoding);
    check_prompt_flags(command, flags.prompts);
    return;
  }
  for (const char* option : {"--prompt", "--prompts", "--input-ids", "--limit", "--metric",
                             "--chat", "--no-thinking", "--regions"}) {
    if (command.get_option(option)->count() == 0) continue;
    throw UsageError(fmt::format(
        "--replay: the trace brings its own prompts, so {} does nothing. HINT: leave it out",
        option));
  }
}

/// Refuses an output that this run may not use. Returns whether it exists already and is complete.
bool check_output(const CaptureFlags& flags, const CaptureTarget& target) {
  if (flags.resume && flags.force) {
    throw UsageError("--resume and --force contradict each other: give one of them");
  }
  const std::string& output = target.output;
  const bool finished = flags.resume && std::filesystem::exists(output);
  if (finished && std::filesystem::exists(output + ".partial")) {
    throw UsageError(fmt::format(
        "--resume: {} exists as well as {}.partial, and finishing would replace it. HINT: move one "
        "of the two away",
        output, output));
  }
  // Checked before the model is loaded, long before the file is opened.
  if (!finished && !resumes(target) && !flags.dry_run) {
    discard_empty_partial(target);
    check_trace_target(output, flags.force);
  }
  return finished;
}

void check_files(const CaptureFlags& flags, const PolicyOptions& policy, const std::string& output,
                 const Environment& environment) {
  CommandFiles files;
  files.reads(flags.prompts.file);
  files.reads(flags.prompts.regions);
  files.reads(policy.reuse_file);
  for (const Intervention& one : policy.interventions) files.reads_trace(one.trace);
  for (const std::string& file : flags.decoding.files()) files.reads(file);
  files.reads_trace(flags.replay);
  reads_model(files, flags.model, environment);
  if (!flags.draft.empty()) files.reads_checkpoint(draft_folder(flags.draft, environment));
  for (const std::string& name : {output, output + ".partial"}) files.reserve(name, true);
}

/// The trace to replay, if any. Without flags, mask token and block length come from that trace.
ReplaySource open_replay(CaptureFlags& flags) {
  if (flags.replay.empty()) return {};
  ReplaySource replay = read_replay(flags.replay, !flags.draft.empty());
  if (!flags.draft.empty()) return replay;
  ModelOverrides& overrides = flags.model.overrides;
  if (!overrides.mask_token_id) {
    overrides.mask_token_id = replay.mask_token_id;
    overrides.mask_source = "trace of --replay";
  }
  if (!overrides.block_length) {
    overrides.block_length = replay.block_length;
    overrides.block_source = "trace of --replay";
  }
  return replay;
}

/// The models that decode: one model, or a target and its draft, one of which is recorded.
struct CaptureModels {
  LoadedModel model;  // with a draft: the target
  std::optional<LoadedDraft> draft;
  RecordedModel which = RecordedModel::draft;

  const LoadedModel& recorded() const {
    return draft && which == RecordedModel::draft ? draft->recorded : model;
  }
  /// The config of the model that is not recorded; null: there is only one model.
  const ModelConfig* beside() const {
    if (!draft) return nullptr;
    return which == RecordedModel::target ? &draft->recorded.config : &model.config;
  }
  int64_t weight_bytes() const {
    return model.model->weight_bytes() + (draft ? draft->draft->weight_bytes() : 0);
  }
};

CaptureModels load_models(const CaptureFlags& flags, const Environment& environment) {
  CaptureModels models{
      load_model(flags.draft.empty() ? flags.model : flags_of_target(flags.model), environment),
      std::nullopt,
      flags.recorded_model == "target" ? RecordedModel::target : RecordedModel::draft};
  if (!flags.draft.empty()) {
    models.draft = load_draft(flags.draft, flags.model, models.model, environment);
  }
  return models;
}

Ranks ranks_of(const CaptureFlags& flags, const Environment& environment) {
  Ranks ranks = choose_ranks(flags.model.ranks, environment.launcher);
  if (!ranks.ignored.empty()) {
    note("note: {}; all prompts are decoded. HINT: --ranks R/N decodes a share\n", ranks.ignored);
  }
  return ranks;
}

DecodeOptions options_of(const CLI::App& command, const CaptureFlags& flags,
                         const CaptureModels& models) {
  DecodeOptions decode = models.draft
                             ? drafted_options(flags.decoding, models.draft->recorded, models.model)
                             : decode_options(flags.decoding, models.model);
  decode.shadow = flags.shadow;
  if (flags.replay.empty()) check_decoding_fits(command, decode);
  return decode;
}

/// Describes both models in the meta, and plans the contexts at which their passes are timed.
void describe_draft(const CaptureModels& models, const CaptureFlags& flags,
                    const DecodeOptions& decode, const std::vector<RunPrompt>& prompts,
                    TraceMeta& meta) {
  meta.model_json = drafted_model_json(models.draft->recorded, models.model, models.which);
  const auto& second = models.draft->draft->draft().second;
  meta.draft_candidates = second && decode.block_length() > 1 ? second->candidates : 0;
  if (flags.no_draft_cost) return;
  meta.draft_cost = draft_cost_plan(decode.block_length(), mean_context(prompts));
}

/// Times the passes whose costs the trace holds, if any.
void measure_draft(const CaptureModels& models, bool quiet, TraceMeta& meta) {
  if (meta.draft_cost.empty()) return;
  if (!quiet) {
    note("measuring passes of target and draft after {} keys (--no-draft-cost leaves it out)\n",
         meta.draft_cost.front().context_length);
  }
  measure_draft_cost(*models.model.model, *models.draft->draft, meta.draft_cost);
}

std::vector<RunPrompt> prompts_of(const CaptureFlags& flags, ReplaySource replay,
                                  const LoadedModel& model, const Tokenizer* tokenizer,
                                  const DecodeOptions& decode) {
  if (flags.replay.empty()) {
    return load_prompts(flags.prompts, model, tokenizer, flags.decoding.gen_length, decode);
  }
  std::vector<RunPrompt> prompts = std::move(replay.prompts);
  for (RunPrompt& prompt : prompts) {
    DecodeRequest& request = prompt.request;
    request.gen_length = gen_length_of(std::ssize(request.prompt), request.gen_length, decode);
    check_request(request, decode, model.config);
  }
  return prompts;
}

/// Decodes and records. After it the file is complete or can be resumed.
void record_run(const CaptureRun& run, const RecorderOptions& recorder,
                const std::vector<RunPrompt>& prompts, const CaptureTarget& target) {
  // Until the file is closed, a signal must not cut the writer short.
  const InterruptGuard guard;
  ResumeState state;
  TraceWriter writer = open_writer(target, recorder.meta, state);
  CaptureTotals totals;
  try {
    totals = run_capture(run, recorder, prompts, state, writer, [&](const CaptureOutcome& result) {
      if (!run.quiet) print_outcome(result);
    });
  } catch (const c10::Error& error) {
    keep_rows(writer, failure_of(error));
  } catch (const TraceError&) {
    throw;  // of the file itself
  } catch (const UsageError&) {
    throw;  // options that can't work; resuming them can't either
  } catch (const InterruptedError&) {
    totals.interrupted = true;
  } catch (const PluginError& error) {  // --resume refuses a changed plugin
    keep_rows(writer, split_failure(error.what()),
              "mend the plugin, then begin again with --force");
  } catch (const Error& error) {
    keep_rows(writer, split_failure(error.what()));
  } catch (const std::bad_alloc&) {
    keep_rows(writer, host_memory_failure());
  } catch (const std::exception& error) {
    keep_rows(writer, split_failure(error.what()));
  }
  if (totals.interrupted) {
    writer.suspend();
    throw InterruptedError(
        fmt::format("{} rows are safe in {}. HINT: the same command with --resume goes on",
                    writer.committed(), writer.partial_path()));
  }
  writer.finish();
  print_totals(totals, state, prompts.size(), target.output);
}

void capture(const CLI::App& command, CaptureFlags flags, const Environment& environment,
             const std::string& command_line) {
  const Ranks ranks = ranks_of(flags, environment);
  const CaptureTarget target{rank_path(flags.output, ranks), flags.force, flags.resume};
  const bool finished = check_output(flags, target);
  const PolicyOptions policy_options = read_policy(flags.policy, flags.interventions);
  check_files(flags, policy_options, target.output, environment);
  ReplaySource replay = open_replay(flags);
  const CaptureModels models = load_models(flags, environment);
  const LoadedModel& model = models.model;
  const auto& draft = models.draft;
  const DecodeOptions decode = options_of(command, flags, models);
  check_policy_fits(policy_options, policy_site(decode), "--policy");
  note_shared_keys(policy_options, model);
  const ChosenPolicy policy = choose_policy(policy_options, policy_model(model));
  const std::optional<Tokenizer> tokenizer = load_tokenizer(model);
  const Tokenizer* tokenizer_or_null = tokenizer.has_value() ? &*tokenizer : nullptr;
  std::vector<RunPrompt> prompts =
      prompts_of(flags, std::move(replay), model, tokenizer_or_null, decode);
  PromptRegions regions;
  if (!prompts.empty()) regions = prompts.front().request.regions;
  check_regions(policy_options.interventions, regions);
  // Computed from the prompts of all ranks, because their traces are merged.
  const int64_t longest = longest_prefix(prompts, decode);
  const bool revokes = takes_tokens_back(prompts, decode);
  const size_t of_all_ranks = prompts.size();
  keep_share(prompts, ranks);
  const std::string share =
      ranks.alone() ? "" : share_text(ranks, prompts.size(), of_all_ranks) + "\n";
  note_text(share);

  RecorderOptions recorder =
      recorder_options(flags.record, *policy.policy, longest, models.recorded(), decode);
  TraceMeta& meta = recorder.meta;
  if (!meta.regions.empty() && !regions.names.empty()) meta.regions = regions.names;
  if (draft) describe_draft(models, flags, decode, prompts, meta);
  meta.has_revocations = revokes;
  check_filter(recorder, decode, prompts);
  meta.run_json = run_json(
      {decode, flags.decoding, policy, recorder, prompts, ranks, flags.replay, command_line});
  meta.pieces = vocabulary_pieces(tokenizer_or_null, model.config.vocab_size);
  if (finished) {  // check that it is this run's trace, not another one's
    check_same_run(target.output, meta);
    say("{}: complete, nothing to resume\n{}", target.output, share);
    return;
  }
  const CaptureCost cost = capture_cost(recorder, decode, prompts, flags.decoding.batch_size,
                                        models.recorded(), models.beside());
  if (!flags.quiet || flags.dry_run) {
    print_plan(flags, models.recorded(), models.weight_bytes(), cost, prompts.size(),
               target.output);
  }
  if (flags.dry_run) return;
  if (!flags.no_space_check) {
    check_free_space(target.output, cost.file_bytes);
    check_memory_of(model.device, cost, models.weight_bytes());
  }
  if (!resumes(target)) measure_draft(models, flags.quiet, meta);
  record_run({model, decode, tokenizer_or_null, *policy.policy, flags.decoding.batch_size,
              flags.quiet, draft ? draft->draft.get() : nullptr, models.which},
             recorder, prompts, target);
  say_text(share);
}

}  // namespace

void add_capture_command(CLI::App& app, const Environment& environment,
                         const std::string& command_line) {
  auto flags = std::make_shared<CaptureFlags>();
  flags->model.shares_prompts = true;
  CLI::App* command =
      app.add_subcommand("capture", "Decode prompts with a checkpoint and record a trace");
  command->footer(
      "Example: blockscope capture models/needle --prompts models/needle/demo.jsonl \\\n"
      "           --record outputs -o run.h5\n"
      "While it is written, the file is run.h5.partial. Every committed row in it is readable.");
  add_model_flags(*command, flags->model);
  command->add_option("--draft", flags->draft,
                      "Draft with this DFlash draft (folder or hub id); the model verifies");
  command
      ->add_option("--recorded-model", flags->recorded_model,
                   "Record the attention, queries and keys of the draft or of the target")
      ->check(CLI::IsMember({"draft", "target"}))
      ->capture_default_str();
  command->add_flag("--no-draft-cost", flags->no_draft_cost,
                    "Don't time passes of draft and target to predict speed-ups");
  add_prompt_flags(*command, flags->prompts);
  add_regions_option(*command, flags->prompts);
  command->add_option("--replay", flags->replay,
                      "Replay the tokens of this trace instead of sampling");
  add_decoding_flags(*command, flags->decoding);
  add_policy_option(*command, flags->policy);
  add_intervene_option(*command, flags->interventions);
  command->add_flag("--shadow", flags->shadow,
                    "Also compute exact attention (with a policy) and a whole pass (with --cache)");
  add_record_flags(*command, flags->record);
  command->add_option("-o,--output", flags->output, "Write this trace")->required();
  command->add_flag("--force", flags->force, "Replace an existing trace");
  command->add_flag("--resume", flags->resume, "Go on with a trace that was cut off");
  command->add_flag("--dry-run", flags->dry_run, "Print what would run and its size, then stop");
  command->add_flag("--no-space-check", flags->no_space_check,
                    "Start even without enough free space or memory");
  command->add_flag("-q,--quiet", flags->quiet, "Print only the last line");
  less_usual(*command, "Draft", {"--recorded-model", "--no-draft-cost"});
  less_usual(*command, "Recording", {"--shadow", "--no-space-check"});
  command->callback([flags, command, environment, command_line] {
    check_flags(*command, *flags);
    capture(*command, *flags, environment, command_line);
  });
}

}  // namespace blockscope
