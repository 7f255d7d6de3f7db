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
#include "probe/run/device_option.h"
#include "probe/run/ranks.h"
#include "probe/tasks/prompts_file.h"
#include "probe/train/train_run.h"
#include "probe/train/train_settings.h"

namespace blockscope {
namespace {

constexpr std::int64_t kDraftLayers = 2;

struct TrainFlags {
  TrainRunOptions run;
  std::string stage = "all";
  std::string ranks = "auto";
  std::string precision = "float32";
  std::string split = "test";
  std::int64_t steps = 0;
  std::size_t first_context = 64, last_context = 1024;
  int threads = 0;
  std::optional<std::size_t> dump_prompts;
  std::vector<std::string> tasks;
  std::vector<std::size_t> contexts = {1024};
  std::string prompts_out = "-";
};

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
  for (const char* option : {"--hidden", "--family", "--tokenizer"}) {
    refuse_idle(command, option, !run.draft, "another --stage: a draft has its target's");
  }
  for (const char* option : {"--backbone-steps", "--learning-rate", "--advance-below"}) {
    refuse_idle(command, option, run.backbone, "the backbone stage");
  }
  for (const char* option :
       {"--diffusion-steps", "--diffusion-learning-rate", "--diffusion-advance-below"}) {
    refuse_idle(command, option, run.diffusion, "the diffusion stage");
  }
  const TrainStage first = run.draft      ? TrainStage::kDraft
                           : run.backbone ? TrainStage::kBackbone
                                          : TrainStage::kDiffusion;
  refuse_idle(command, "--init", !run.resume || !std::filesystem::exists(state_file(run, first)),
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
  return run.draft ? run.draft_steps : run.backbone ? run.backbone_steps : run.diffusion_steps;
}

/// A draft uses its target's tokenizer. Unless --layers was given, it has few layers.
void prepare_draft(TrainRunOptions& run, bool layers_given) {
  if (run.train.target.empty()) {
    throw UsageError(
        "--stage draft: expected the model it drafts for, got no --target. HINT: --target "
        "models/needle/backbone");
  }
  run.tokenizer = run.train.target;
  if (!layers_given) run.model.num_layers = kDraftLayers;
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
  run.train.first_level = curriculum_level(flags.first_context, "--first-context");
  run.train.last_level = curriculum_level(flags.last_context, "--last-context");
  run.train.bfloat16 = flags.precision == "bfloat16";
  if (run.resume) {
    take_settings(run, [&](const std::string& option) {
      const bool steps = option == (run.draft      ? "--draft-steps"
                                    : run.backbone ? "--backbone-steps"
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

void add_shape_options(CLI::App& command, ModelConfig& model) {
  const char* group = "Model shape";
  const auto positive = whole_number(1, 1U << 20U);
  const auto add = [&](const char* flag, std::int64_t& value, const char* text) {
    command.add_option(flag, value, text)->check(positive)->capture_default_str()->group(group);
  };
  add("--layers", model.num_layers, "Set the number of layers (draft: 2)");
  add("--hidden", model.hidden_size, "Set the hidden size");
  add("--ffn", model.intermediate_size, "Set the inner size of SwiGLU");
  add("--heads", model.num_heads, "Set the number of query heads");
  add("--kv-heads", model.num_kv_heads, "Set the number of KV heads");
  add("--head-dim", model.head_dim, "Set the number of channels per head");
}

void add_optimiser_options(CLI::App& command, TrainFlags& flags) {
  const char* group = "Optimisation";
  TrainRunOptions& run = flags.run;
  const auto add = [&](const char* flag, auto& value, const char* text) {
    return command.add_option(flag, value, text)->capture_default_str()->group(group);
  };
  const auto positive = real_number(0.0, kAnyReal, false);
  const auto count = whole_number(1);
  add("--steps", flags.steps, "Train the one stage for this many steps")->check(count);
  add("--backbone-steps", run.backbone_steps, "Train the backbone stage for this many steps")
      ->check(count);
  add("--diffusion-steps", run.diffusion_steps, "Train the diffusion stage for this many steps")
      ->check(count);
  add("--draft-steps", run.draft_steps, "Train the draft stage for this many steps")->check(count);
  add("--learning-rate", run.train.learning_rate,
      "Set the peak learning rate of the backbone stage")
      ->check(positive);
  add("--diffusion-learning-rate", run.diffusion_learning_rate,
      "Set the peak learning rate of the diffusion stage")
      ->check(positive);
  add("--draft-learning-rate", run.draft_learning_rate,
      "Set the peak learning rate of the draft stage")
      ->check(positive);
  add("--decay", run.train.decay_fraction,
      "Let the rate fall to 2 % over this last share of the steps")
      ->check(real_number(0.0, 1.0));
  add("--warmup", run.train.warmup, "Warm up linearly for this many steps")->check(count);
  add("--batch-tokens", run.train.batch_rows,
      "Aim at this many tokens per batch (2 to 16 documents)")
      ->check(count);
  add("--first-context", flags.first_context, "Start the curriculum at this context length");
  add("--last-context", flags.last_context, "End the curriculum at this context length");
  add("--advance-below", run.train.advance_below,
      "Lengthen contexts when the mean answer loss of 40 batches is below this")
      ->check(positive);
  add("--diffusion-advance-below", run.diffusion_advance_below,
      "Set --advance-below for the diffusion stage")
      ->check(positive);
  add("--draft-advance-below", run.draft_advance_below, "Set --advance-below for the draft stage")
      ->check(positive);
  add("--drill-share", run.train.drill_share,
      "Make this share of batches short drills of sums and sorts, after context 64")
      ->check(real_number(0.0, 1.0));
  add("--precision", flags.precision,
      "Compute linear layers and attention in this type (weights stay float32)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
}

/// Options that say what is trained.
void add_stage_options(CLI::App& command, TrainFlags& flags) {
  TrainRunOptions& run = flags.run;
  command
      .add_option(
          "--stage", flags.stage,
          "Train this stage (all: backbone and diffusion; draft: a DFlash draft for --target)")
      ->check(CLI::IsMember({"backbone", "diffusion", "draft", "all"}))
      ->capture_default_str();
  command.add_option("--target", run.train.target,
                     "Train the draft for the model in this checkpoint folder");
  command
      .add_option("--block-size", run.draft_block, "Set the number of positions of a draft's block")
      ->check(whole_number(2, 256))
      ->capture_default_str();
  command
      .add_option(
          "--target-layers", run.target_layers,
          "Let the draft read hidden states of these target layers, from 0 (default: evenly "
          "spread)")
      ->delimiter(',');
  command
      .add_option("--family", run.family,
                  "Train a block-diffusion model (sdar) or a bidirectional model (llada)")
      ->check(CLI::IsMember(
          families_with([](const Family& family) { return family.training.by_name; })))
      ->capture_default_str();
}

/// Options for folders, resuming, time, threads and reports.
void add_run_options(CLI::App& command, TrainFlags& flags) {
  TrainRunOptions& run = flags.run;
  command.add_option("-o,--out", run.out,
                     "Write the checkpoint here (required to train), the backbone to OUT/backbone");
  command.add_option("--init", run.init, "Start the first stage from this checkpoint folder");
  command.add_option("--tokenizer", run.tokenizer, "Read tokenizer.json from this folder")
      ->capture_default_str();
  command.add_option("--work", run.work, "Keep states and CSV logs in this folder")
      ->capture_default_str();
  command.add_flag(
      "--resume", run.resume,
      "Go on from the state in --work with its settings, bit for bit (same --threads)");
  command.add_flag("--force", run.force, "Replace checkpoints, states and prompts of other runs");
  command
      .add_option("--minutes", run.minutes, "Save and stop after this many minutes (0: no limit)")
      ->check(real_number(0.0, kAnyReal));
  command.add_option("--seed", run.train.seed, "Set the seed of weights, batches and prompts")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  add_threads_option(command, flags.threads);
  command.add_option("--device", run.train.device, "Train on this device: cpu, cuda or cuda:N")
      ->capture_default_str();
  add_ranks_option(command, flags.ranks);
  command.add_option("--save-every", run.save_every, "Save the state after every so many steps")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--report-every", run.report_every,
                  "Print a progress line after every so many steps")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--evaluate-every", run.evaluate_every,
                  "Evaluate after every so many steps (0: only at the end)")
      ->check(whole_number(0))
      ->capture_default_str();
  command
      .add_option("--evaluate-documents", run.evaluate_documents, "Evaluate on this many documents")
      ->check(whole_number(0))
      ->capture_default_str();
}

void add_prompt_options(CLI::App& command, TrainFlags& flags) {
  const char* prompts = "Task prompts instead of training";
  command.add_option("--dump-prompts", flags.dump_prompts, "Write this many prompts as JSONL")
      ->check(whole_number(1, 10'000'000))
      ->group(prompts);
  command.add_option("--tasks", flags.tasks, "Use these tasks (default: all)")
      ->delimiter(',')
      ->group(prompts);
  command.add_option("--context", flags.contexts, "Use these context lengths")
      ->delimiter(',')
      ->check(whole_number(64, kLongestContext))
      ->capture_default_str()
      ->group(prompts);
  command.add_option("--split", flags.split, "Draw the prompts from this split's streams")
      ->check(CLI::IsMember({"test", "train"}))
      ->capture_default_str()
      ->group(prompts);
  command
      .add_option("--prompts-out", flags.prompts_out,
                  "Write the prompts to this file (-: standard output)")
      ->capture_default_str()
      ->group(prompts);
}

}  // namespace

void add_train_command(CLI::App& app, const Environment& environment) {
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a small model on generated tasks: AR backbone, block diffusion, DFlash draft");
  auto flags = std::make_shared<TrainFlags>();
  flags->run.model = needle_model_config();
  add_stage_options(*command, *flags);
  add_run_options(*command, *flags);
  add_optimiser_options(*command, *flags);
  add_shape_options(*command, flags->run.model);
  add_prompt_options(*command, *flags);
  command->footer(
      "Examples:\n"
      "  blockscope train --stage all --out my-model --work build/training --threads 2\n"
      "  blockscope train --stage draft --target models/needle/backbone --out my-draft\n"
      "  blockscope train --resume --out my-model --work build/training --threads 2\n"
      "  blockscope train --dump-prompts 20 --tasks needle,sort --context 1024 > prompts.jsonl\n"
      "Without --target-layers, a draft reads layers spread from 1 to the third from the end.\n"
      "You can interrupt training (Ctrl-C, SIGTERM) at any time. The state is saved, and --resume\n"
      "goes on from it.");
  command->callback([flags, command, environment] { run_command(*command, *flags, environment); });
}

}  // namespace blockscope
