#include "probe/train/train_run.h"

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "command_line/interrupt.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/files/command_files.h"
#include "probe/checkpoint/family_table.h"
#include "probe/train/evaluation.h"
#include "probe/train/reuse_run.h"
#include "probe/train/run_log.h"
#include "probe/train/train_settings.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double share(std::int64_t right, std::int64_t asked) {
  return asked > 0 ? static_cast<double>(right) / static_cast<double>(asked) : 0.0;
}

std::string csv_header() {
  std::string header =
      "step,context,block,tokens,loss,answer_loss,learning_rate,gradient_norm,seconds";
  for (const char* task : kTaskNames) header += std::string(",") + task;
  return header;
}

std::string csv_line(const StepReport& report, double seconds) {
  std::string line =
      fmt::format("{},{},{},{},{:.5f},{:.5f},{:.4g},{:.4f},{:.3f}", report.step,
                  report.context_length, report.block_length, report.rows, report.loss,
                  report.answer_loss, report.learning_rate, report.gradient_norm, seconds);
  for (std::size_t t = 0; t < kNumTasks; ++t) {
    line += ',';
    if (report.answer_rows[t] == 0) continue;
    line += fmt::format("{:.4f}", share(report.answer_right[t], report.answer_rows[t]));
  }
  return line;
}

/// Sums since the last progress line.
struct Progress {
  std::int64_t steps = 0, tokens = 0;
  double answer_loss = 0.0, loss = 0.0;
  std::array<std::int64_t, kNumTasks> rows{}, right{};

  void add(const StepReport& report) {
    ++steps;
    tokens += report.rows;
    loss += report.loss;
    answer_loss += report.answer_loss;
    for (std::size_t t = 0; t < kNumTasks; ++t) {
      rows[t] += report.answer_rows[t];
      right[t] += report.answer_right[t];
    }
  }

  void print(const Trainer& trainer, double seconds) const {
    const auto count = static_cast<double>(steps);
    const double left =
        seconds / count * static_cast<double>(trainer.options().steps - trainer.steps_done());
    say("{} {}/{} context {} loss {:.3f} answers {:.3f} |",
        train_stage_name(trainer.options().stage), trainer.steps_done(), trainer.options().steps,
        64LL << trainer.level(), loss / count, answer_loss / count);
    for (std::size_t t = 0; t < kNumTasks; ++t) {
      if (rows[t] > 0) say(" {} {:.0f}%", kTaskNames[t], 100.0 * share(right[t], rows[t]));
    }
    say(" | {:.0f} tokens/s, {:.1f} min left\n", static_cast<double>(tokens) / seconds,
        left / 60.0);
    std::fflush(stdout);
  }
};

void print_evaluation(const Trainer& trainer, const TrainRunOptions& options) {
  const bool draft = trainer.options().stage == TrainStage::kDraft;
  const bool diffusion = trainer.options().stage == TrainStage::kDiffusion;
  const std::size_t longest = std::size_t{64} << trainer.options().last_level;
  for (std::size_t context = std::size_t{64} << trainer.level(); context <= longest; context *= 4) {
    EvaluationSpec spec;
    spec.context_length = context;
    spec.documents = options.evaluate_documents;
    spec.block_length = std::array<std::int64_t, 3>{8, 16, 32}[static_cast<std::size_t>(
        trainer.steps_done() / std::max<std::int64_t>(options.evaluate_every, 1) % 3)];
    if (draft) spec.block_length = options.draft_block;
    const EvaluationReport report = evaluate(trainer, spec);
    say("  {} on fresh documents, context {}", draft ? "tokens a round" : "answers right", context);
    if (diffusion || draft) say(", block {}", spec.block_length);
    say(":");
    for (std::size_t t = 0; t < kNumTasks; ++t) {
      if (draft) {
        say(" {} {:.2f}", kTaskNames[t], share(report.tokens[t], report.rounds[t]));
      } else {
        say(" {} {}/{}", kTaskNames[t], report.right[t], report.asked[t]);
      }
    }
    say(" ({:.0f} s)\n", report.seconds);
    std::fflush(stdout);
  }
}

/// The stages of a run in their order, with the folder of each one's checkpoint.
std::vector<std::pair<TrainStage, fs::path>> stages_of(const TrainRunOptions& options) {
  std::vector<std::pair<TrainStage, fs::path>> stages;
  if (options.backbone) stages.emplace_back(TrainStage::kBackbone, options.out / "backbone");
  if (options.diffusion) stages.emplace_back(TrainStage::kDiffusion, options.out);
  if (options.draft) stages.emplace_back(TrainStage::kDraft, options.out);
  if (options.reuse_stage) stages.emplace_back(TrainStage::kReuse, options.out);
  return stages;
}

std::vector<fs::path> outputs_of(const TrainRunOptions& options, TrainStage stage,
                                 const fs::path& folder) {
  if (stage == TrainStage::kReuse) return reuse_outputs(options);
  std::vector<fs::path> paths;
  for (const char* name : kCheckpointFiles) paths.push_back(folder / name);
  return paths;
}

void check_outputs(const TrainRunOptions& options) {
  check_train_folder(options.out, "--out");
  check_train_folder(options.work, "--work");
  const auto has_state = [&](const auto& stage) {
    return fs::exists(state_file(options, stage.first));
  };
  if (options.resume && std::ranges::none_of(stages_of(options), has_state)) {
    throw UsageError(fmt::format(
        "--resume: {}: expected the state of a run, got none. HINT: name its --work and --stage, "
        "or leave out --resume to begin",
        options.work.string()));
  }
  CommandFiles files;
  if (!options.init.empty()) files.reads_checkpoint(options.init.string());
  files.reads(options.data.string());
  std::error_code error;
  if (options.draft) files.reads_checkpoint(options.train.target.string());
  const bool shares_tokenizer = fs::equivalent(options.out, options.tokenizer, error);
  if (!shares_tokenizer) {
    for (const char* name : kTokenizerFiles) files.reads((options.tokenizer / name).string());
  }
  for (const auto& [stage, folder] : stages_of(options)) {
    const bool resumed = options.resume && fs::exists(state_file(options, stage));
    const bool own =
        resumed && first_line(owner_file(options, stage)) == fs::absolute(folder).string();
    for (const fs::path& path : outputs_of(options, stage, folder)) {
      files.reserve(path.string(), options.force || own);
    }
    files.reserve(state_file(options, stage).string(), options.force || resumed);
  }
}

/// `options.train` with the stage's own settings.
TrainOptions stage_options(const TrainRunOptions& options, TrainStage stage) {
  TrainOptions train = options.train;
  train.stage = stage;
  train.settings = settings_json(options);
  train.steps = options.backbone_steps;
  if (stage == TrainStage::kDiffusion) {
    train.steps = options.diffusion_steps;
    train.learning_rate = options.diffusion_learning_rate;
    train.advance_below = options.diffusion_advance_below;
    // The backbone already retrieves. Contexts of 64 have no other tasks.
    train.first_level = std::min(std::max(train.first_level, 1), train.last_level);
  } else if (stage == TrainStage::kDraft) {
    train.steps = options.draft_steps;
    train.learning_rate = options.draft_learning_rate;
    train.advance_below = options.draft_advance_below;
  }
  return train;
}

/// Takes weights from the state, from `init`, or new ones. A new run removes states of other runs.
void begin_stage(Trainer& trainer, const TrainRunOptions& options, TrainStage stage,
                 const fs::path& init) {
  const fs::path state = state_file(options, stage);
  if (options.resume && fs::exists(state)) {
    trainer.load_state(state);
    say("{}: resumed {} at step {}\n", train_stage_name(stage), state.string(),
        trainer.steps_done());
  } else if (!init.empty()) {
    trainer.load_weights(init);
  } else if (stage == TrainStage::kDiffusion) {
    throw UsageError(
        "--stage diffusion: expected a trained backbone, got none. HINT: pass --init "
        "with the backbone's folder, or --stage all");
  } else {
    trainer.initialise();
  }
  if (trainer.steps_done() > 0) return;
  // --resume must not take another run's state for a state of this run.
  fs::remove(state);
  if (stage == TrainStage::kBackbone && options.diffusion) {
    fs::remove(state_file(options, TrainStage::kDiffusion));
  }
}

/// Trains until the last step, a signal or the end of --minutes. Writes log, progress, states and
/// evaluations.
void make_steps(Trainer& trainer, const TrainRunOptions& options, TrainStage stage,
                std::int64_t steps, Clock::time_point start) {
  CsvLog log(options.work / (std::string(train_stage_name(stage)) + ".csv"), csv_header(),
             trainer.steps_done());
  Progress progress;
  Clock::time_point line_start = Clock::now();
  const auto out_of_time = [&] {
    return options.minutes > 0.0 && seconds_since(start) > options.minutes * 60.0;
  };
  while (trainer.steps_done() < steps && InterruptGuard::signal() == 0 && !out_of_time()) {
    const Clock::time_point step_start = Clock::now();
    const StepReport report = trainer.step();
    log.write(csv_line(report, seconds_since(step_start)));
    progress.add(report);
    const std::int64_t done = trainer.steps_done();
    if (done % options.report_every == 0 || done == steps) {
      progress.print(trainer, seconds_since(line_start));
      progress = Progress{};
      line_start = Clock::now();
    }
    if (done % options.save_every == 0) trainer.save_state(state_file(options, stage));
    if (options.evaluate_documents > 0 && options.evaluate_every > 0 &&
        done % options.evaluate_every == 0 && done < steps) {
      print_evaluation(trainer, options);
      line_start = Clock::now();
    }
  }
  trainer.save_state(state_file(options, stage));
}

/// Runs a stage. False if --minutes ended it before its last step.
bool run_stage(const TrainRunOptions& options, TrainStage stage, const fs::path& init,
               Clock::time_point start) {
  const TrainOptions train = stage_options(options, stage);
  const TaskTokens tokens = load_task_tokens((options.tokenizer / "tokenizer.json").string());
  const bool draft = stage == TrainStage::kDraft;
  Trainer trainer(draft ? draft_config_for(Checkpoint::open(train.target), options.model,
                                           options.draft_block, tokens.mask, options.target_layers)
                        : options.model,
                  train, tokens);
  begin_stage(trainer, options, stage, init);
  const fs::path folder = stage == TrainStage::kBackbone ? options.out / "backbone" : options.out;
  write_line(owner_file(options, stage), fs::absolute(folder).string());
  make_steps(trainer, options, stage, train.steps, start);
  if (trainer.steps_done() < train.steps) {
    const std::string saved =
        fmt::format("step {}, saved {}. HINT: --resume goes on", trainer.steps_done(),
                    state_file(options, stage).string());
    InterruptGuard::check(fmt::format("{}: {}", train_stage_name(stage), saved));
    say("{}: stopped at {}\n", train_stage_name(stage), saved);
    return false;
  }
  trainer.export_checkpoint(folder, options.tokenizer);
  say("{}: {} steps, {:.2f}M tokens, written to {}\n", train_stage_name(stage),
      trainer.steps_done(), static_cast<double>(trainer.tokens_seen()) * 1e-6, folder.string());
  if (options.evaluate_documents > 0) print_evaluation(trainer, options);
  return true;
}

}  // namespace

ModelConfig needle_model_config() {
  ModelConfig config;
  config.num_layers = 6;
  config.hidden_size = 192;
  config.intermediate_size = 320;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 48;
  config.vocab_size = 1024;
  config.max_position_embeddings = 4608;
  config.rms_norm_eps = 1e-6;
  config.rope.theta = 1e4;
  config.tie_word_embeddings = true;
  return in_family(config, "sdar");
}

ModelConfig in_family(ModelConfig shapes, const std::string& name) {
  const Family& family = family_named(name);
  const std::string& backbone = family.training.backbone;
  set_family(backbone.empty() ? family : family_named(backbone), shapes);
  family.training.fit(shapes);
  return shapes;
}

void run_training(const TrainRunOptions& options) {
  const Clock::time_point start = Clock::now();
  check_outputs(options);
  fs::create_directories(options.work);
  if (options.backbone && !run_stage(options, TrainStage::kBackbone, options.init, start)) return;
  if (options.draft) run_stage(options, TrainStage::kDraft, options.init, start);
  if (options.reuse_stage) run_reuse(options, start);
  if (!options.diffusion) return;
  const fs::path init = options.backbone ? options.out / "backbone" : options.init;
  run_stage(options, TrainStage::kDiffusion, init, start);
}

}  // namespace blockscope
