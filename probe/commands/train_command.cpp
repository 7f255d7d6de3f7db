#include "probe/commands/train_command.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "probe/checkpoint/family_table.h"
#include "probe/commands/train_options.h"
#include "probe/run/device_option.h"
#include "probe/run/ranks.h"
#include "probe/tasks/prompts_file.h"
#include "probe/train/draft_objective.h"
#include "probe/train/train_run.h"
#include "probe/train/train_settings.h"

namespace blockscope {
namespace {

constexpr std::int64_t kDraftLayers = 2;

/// 64 -> 0, 128 -> 1, ... 4096 -> 6.
int curriculum_level(std::size_t context, const char* flag) {
  for (int level = 0; level <= kMostLevel; ++level) {
    if (context == std::size_t{64} << level) return level;
  }
  throw UsageError(std::string(flag) + ": expected 64, 128, 256, 512, 1024, 2048 or 4096, got " +
                   std::to_string(context));
}

void write_prompt_lines(const TrainFlags& flags) {
  PromptsSpec spec;
  spec.count = *flags.dump_prompts;
  spec.contexts = flags.contexts;
  spec.seed = flags.run.train.seed;
  spec.split = flags.split == "test" ? TaskSplit::kTest : TaskSplit::kTrain;
  for (const std::string& name : flags.tasks) spec.tasks.push_back(task_from_name(name));
  if (flags.prompts_out == "-") {
    write_prompts(spec, std::cout, [](std::size_t written) {
      InterruptGuard::check(fmt::format("printed {} of the prompts", written));
    });
    return;
  }
  OutputFile output(flags.prompts_out, flags.run.force);
  output.write([&spec](std::ostream& out) {
    write_prompts(spec, out, [](std::size_t) { InterruptGuard::check(); });
  });
  InterruptGuard::check();
  output.commit();
}

void check_shapes(const ModelConfig& model) {
  if (model.num_heads % model.num_kv_heads != 0) {
    throw UsageError("--kv-heads: expected a divisor of --heads " +
                     std::to_string(model.num_heads) + ", got " +
                     std::to_string(model.num_kv_heads));
  }
  if (model.head_dim % 2 != 0) {
    throw UsageError("--head-dim: expected an even number, got " + std::to_string(model.head_dim));
  }
}

/// This command either trains or writes prompts. Refuses options of the one that it does not do.
void check_mode(const CLI::App& command, const TrainFlags& flags) {
  const bool prompts = flags.dump_prompts.has_value();
  for (const char* option : {"--tasks", "--context", "--split", "--prompts-out"}) {
    refuse_idle(command, option, prompts, "--dump-prompts");
  }
  refuse_idle(command, "--force", !prompts || flags.prompts_out != "-", "--prompts-out");
  const std::set<std::string> also{"--dump-prompts", "--tasks", "--context", "--split",
                                   "--prompts-out",  "--seed",  "--force",   "--help"};
  for (const CLI::Option* option : command.get_options()) {
    if (!prompts || also.contains(option->get_name()) || option->get_lnames().empty()) continue;
    refuse_idle(command, "--" + option->get_lnames().back(), false,
                "training, and --dump-prompts trains nothing");
  }
}

/// Refuses options of a stage that does not run, and others that this run would ignore.
void check_training(const CLI::App& command, const TrainFlags& flags) {
  const TrainRunOptions& run = flags.run;
  for (const char* option : {"--draft-steps", "--draft-learning-rate", "--draft-advance-below",
                             "--block-size", "--target", "--target-layers"}) {
    refuse_idle(command, option, run.draft, "--stage draft");
  }
  for (const char* option :
       {"--reuse-steps", "--reuse-learning-rate", "--weight-decay", "--lora-modules", "--lora-rank",
        "--lora-alpha", "--lora-dropout", "--unroll", "--quota", "--threshold", "--reuse-weight",
        "--dense-weight", "--probes", "--start-steps", "--block-length", "--data", "--merge"}) {
    refuse_idle(command, option, run.reuse_stage, "--stage reuse");
  }
  for (const char* option : {"--hidden", "--family", "--tokenizer"}) {
    refuse_idle(command, option, !run.draft && !run.reuse_stage,
                "another --stage: a draft has its target's, an adapter its base's");
  }
  for (const char* option :
       {"--layers", "--ffn", "--heads", "--kv-heads", "--head-dim", "--drill-share"}) {
    refuse_idle(command, option, !run.reuse_stage, "another --stage: an adapter has its base's");
  }
  for (const char* option : {"--backbone-steps", "--learning-rate", "--advance-below"}) {
    refuse_idle(command, option, run.backbone, "the backbone stage");
  }
  for (const char* option :
       {"--diffusion-steps", "--diffusion-learning-rate", "--diffusion-advance-below"}) {
    refuse_idle(command, option, run.diffusion, "the diffusion stage");
  }
  const TrainStage first = run.reuse_stage ? TrainStage::kReuse
                           : run.draft     ? TrainStage::kDraft
                           : run.backbone  ? TrainStage::kBackbone
                                           : TrainStage::kDiffusion;
  refuse_idle(command, "--init",
              !run.resume || run.reuse_stage || !std::filesystem::exists(state_file(run, first)),
              "a stage to start: --resume goes on from the state in --work");
  refuse_idle(command, "--evaluate-every", run.evaluate_every == 0 || run.evaluate_documents > 0,
              "--evaluate-documents above 0");
  constexpr const char* kCurriculum = "a --last-context above the first one";
  const int last = run.train.last_level;
  refuse_idle(command, "--advance-below", last > run.train.first_level, kCurriculum);
  refuse_idle(command, "--draft-advance-below", last > run.train.first_level, kCurriculum);
  refuse_idle(command, "--diffusion-advance-below", last > std::max(run.train.first_level, 1),
              kCurriculum);
  refuse_idle(command, "--drill-share", run.train.last_level > 0, "a --last-context above 64");
}

/// The number of steps that --steps sets.
std::int64_t& stage_steps(TrainRunOptions& run) {
  if (run.backbone && run.diffusion) {
    throw UsageError(
        "--steps: expected one stage, got --stage all. HINT: use --backbone-steps "
        "and --diffusion-steps");
  }
  if (run.reuse_stage) return run.reuse.steps;
  return run.draft ? run.draft_steps : run.backbone ? run.backbone_steps : run.diffusion_steps;
}

/// A draft uses its target's tokenizer. Unless --layers was given, it has few layers.
void prepare_draft(TrainRunOptions& run, bool layers_given) {
  if (run.train.target.empty()) {
    throw UsageError(
        "--stage draft: expected the model it drafts for, got no --target. HINT: --target "
        "models/needle/backbone");
  }
  check_draft_target(run.train.target);
  run.tokenizer = run.train.target;
  if (!layers_given) run.model.num_layers = kDraftLayers;
}

/// The modules in the order of kAdapterModules, each once.
std::string letters_of(const std::vector<std::string>& modules) {
  std::string letters;
  for (const char letter : std::string(kAdapterModules)) {
    if (std::ranges::count(modules, std::string(1, letter)) > 0) letters += letter;
  }
  return letters;
}

/// An adapter uses its base's tokenizer.
void prepare_reuse(TrainRunOptions& run) {
  if (run.init.empty()) {
    throw UsageError(
        "--stage reuse: expected the checkpoint to adapt, got no --init. HINT: --init "
        "models/needle");
  }
  run.tokenizer = run.init;
}

void run_command(const CLI::App& command, TrainFlags& flags, const Environment& environment) {
  const InterruptGuard signals;  // before the first output: a signal must not leave a partial one
  check_mode(command, flags);
  if (flags.dump_prompts.has_value()) return write_prompt_lines(flags);
  for (const std::filesystem::path& folder : {flags.run.out, flags.run.work}) {
    if (!folder.empty()) check_meant_as_name(folder.string());
  }
  if (flags.run.out.empty()) {
    throw UsageError("--out: expected a folder for the checkpoint, got none. HINT: --out my-model");
  }
  refuse_ranks("train", choose_ranks(flags.ranks, environment.launcher));
  open_device(flags.run.train.device, local_rank(environment.launcher));
  TrainRunOptions& run = flags.run;
  run.reuse_stage = flags.stage == "reuse";
  run.draft = flags.stage == "draft";
  run.backbone = flags.stage == "backbone" || flags.stage == "all";
  run.diffusion = flags.stage == "diffusion" || flags.stage == "all";
  const auto given = [&command](const std::string& option) {
    return command.get_option(option)->count() > 0;
  };
  if (run.resume && !given("--stage")) take_stage(run);
  if (run.resume) take_folders(run, given);
  if (flags.steps > 0) stage_steps(run) = flags.steps;
  if (run.draft) prepare_draft(run, given("--layers"));
  if (run.reuse_stage) prepare_reuse(run);
  run.reuse.lora.modules = letters_of(flags.lora_modules);
  run.train.first_level = curriculum_level(flags.first_context, "--first-context");
  run.train.last_level = curriculum_level(flags.last_context, "--last-context");
  run.train.bfloat16 = flags.precision == "bfloat16";
  if (run.resume) {
    take_settings(run, [&](const std::string& option) {
      const bool steps = option == (run.reuse_stage ? "--reuse-steps"
                                    : run.draft     ? "--draft-steps"
                                    : run.backbone  ? "--backbone-steps"
                                                    : "--diffusion-steps");
      return given(option) || (steps && given("--steps"));
    });
  }
  check_training(command, flags);
  if (run.train.first_level > run.train.last_level) {
    throw UsageError("--first-context: expected at most --last-context " +
                     std::to_string(64 << run.train.last_level) + ", got " +
                     std::to_string(64 << run.train.first_level));
  }
  check_shapes(run.model);
  refuse_idle(command, "--head-dim", family_named(run.family).key("head_dim") == "head_dim",
              "--family sdar: llada's heads have --hidden / --heads channels");
  run.model = in_family(run.model, run.family);
  if (flags.threads > 0) at::set_num_threads(flags.threads);
  run_training(run);
}

}  // namespace

void add_train_command(CLI::App& app, const Environment& environment) {
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a small model on generated tasks, or a LoRA adapter that makes reuse more accurate");
  auto flags = std::make_shared<TrainFlags>();
  flags->run.model = needle_model_config();
  add_train_options(*command, *flags);
  command->footer(
      "Examples:\n"
      "  blockscope train --stage all --out my-model --work build/training --threads 2\n"
      "  blockscope train --stage draft --target models/needle/backbone --out my-draft\n"
      "  blockscope train --stage reuse --init models/needle-2k --last-context 2048 --out adapter\n"
      "  blockscope train --resume --out my-model --work build/training --threads 2\n"
      "  blockscope train --dump-prompts 20 --tasks needle,sort --context 1024 > prompts.jsonl\n"
      "Without --target-layers, a draft reads layers spread from 1 to the third from the end.\n"
      "You can interrupt training (Ctrl-C, SIGTERM) at any time. The state is saved, and --resume\n"
      "goes on from it.");
  command->callback([flags, command, environment] { run_command(*command, *flags, environment); });
}

}  // namespace blockscope
