#include "probe/commands/train_options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "command_line/options.h"
#include "probe/checkpoint/family_table.h"
#include "probe/run/ranks.h"

namespace blockscope {
namespace {

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
      "Aim at this many tokens per batch (2 to 16 documents); reuse: with probes, from 1")
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
      .add_option("--stage", flags.stage,
                  "Train this stage (all: backbone and diffusion; draft: a DFlash draft for "
                  "--target; reuse: "
                  "a LoRA adapter of --init for FlashBlock)")
      ->check(CLI::IsMember({"backbone", "diffusion", "draft", "reuse", "all"}))
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
  command.add_option(
      "-o,--out", run.out,
      "Write checkpoint or adapter here (required to train), the backbone to OUT/backbone");
  command.add_option("--init", run.init,
                     "Start the first stage from this checkpoint folder; reuse: adapt it");
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

void add_reuse_options(CLI::App& command, TrainFlags& flags) {
  const char* group = "Adapter for reuse";
  TrainRunOptions& run = flags.run;
  ReuseTrainOptions& reuse = run.reuse;
  const auto add = [&](const char* flag, auto& value, const char* text) {
    return command.add_option(flag, value, text)->capture_default_str()->group(group);
  };
  const auto count = whole_number(1);
  const auto weight = real_number(0.0, kAnyReal);
  add("--reuse-steps", reuse.steps, "Train the reuse stage for this many steps")->check(count);
  add("--reuse-learning-rate", reuse.learning_rate, "Set the peak learning rate of the reuse stage")
      ->check(real_number(0.0, kAnyReal, false));
  add("--weight-decay", reuse.adam.weight_decay, "Set AdamW's weight decay of the reuse stage")
      ->check(weight);
  add("--lora-modules", flags.lora_modules, "Adapt these projections of each attention layer")
      ->delimiter(',')
      ->check(CLI::IsMember({"q", "k", "v", "o"}));
  add("--lora-rank", reuse.lora.rank, "Set the rank r of the adapter")
      ->check(whole_number(1, 4096));
  add("--lora-alpha", reuse.lora.alpha, "Scale the adapter by this number / r")
      ->check(real_number(0.0, kAnyReal, false));
  add("--lora-dropout", reuse.lora.dropout, "Zero this share of the adapter's inputs in training")
      ->check(real_number(0.0, 0.99));
  add("--unroll", reuse.objective.unroll,
      "Unroll this many denoising steps; those after the first reuse its pair")
      ->check(whole_number(2, 64));
  add("--quota", reuse.objective.quota,
      "Let the teacher decide at most 1 to so many tokens a step, drawn per batch")
      ->check(count);
  add("--threshold", reuse.objective.threshold,
      "Let it decide tokens above this probability, or the best one")
      ->check(real_number(0.0, 1.0));
  add("--reuse-weight", reuse.objective.reuse_weight, "Weight KL(teacher || reusing student)")
      ->check(weight);
  add("--dense-weight", reuse.objective.dense_weight, "Weight KL(teacher || exact student)")
      ->check(weight);
  add("--probes", reuse.batch.probes, "Probe at most this many blocks of a document")->check(count);
  add("--start-steps", reuse.objective.start_steps,
      "Let the teacher take 0 to so many steps before the first, drawn per batch")
      ->check(whole_number(0, 64));
  command
      .add_option("--block-length", reuse.batch.block_length,
                  "Set the length of a probe block (default: the base's block length)")
      ->check(whole_number(1, 1024))
      ->group(group);
  command
      .add_option("--data", run.data,
                  "Train on the texts of this prompt file (default: generated tasks)")
      ->group(group);
  command.add_flag("--merge", run.merge, "Also write the adapted checkpoint to OUT/merged")
      ->group(group);
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

void add_train_options(CLI::App& command, TrainFlags& flags) {
  add_stage_options(command, flags);
  add_run_options(command, flags);
  add_optimiser_options(command, flags);
  add_reuse_options(command, flags);
  add_shape_options(command, flags.run.model);
  add_prompt_options(command, flags);
}

}  // namespace blockscope
