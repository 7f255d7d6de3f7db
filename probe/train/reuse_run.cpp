#include "probe/train/reuse_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "command_line/interrupt.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "probe/text/prompts.h"
#include "probe/text/tokenizer.h"
#include "probe/train/merged_checkpoint.h"
#include "probe/train/reuse_trainer.h"
#include "probe/train/run_log.h"
#include "probe/train/train_settings.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;
using Moment = std::chrono::steady_clock::time_point;

constexpr std::size_t kHeldOutOf = 10;  // the last of so many texts is for validation
constexpr const char* kMeasures = "loss,reuse_kl,dense_kl,reuse_agreement,dense_agreement";

double since(Moment start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string measures(const ReuseReport& report) {
  return fmt::format("{:.7g},{:.7g},{:.7g},{:.4f},{:.4f}", report.loss, report.reuse_kl,
                     report.dense_kl, report.reuse_agreement(), report.dense_agreement());
}

/// Texts of at least two blocks: one is the prefix of the first probe.
TextSource texts_of(const TrainRunOptions& options, const Checkpoint& base) {
  const PromptSet set = read_prompts(options.data);
  for (const std::string& warning : set.warnings) note("note: {}\n", warning);
  const Tokenizer tokenizer = Tokenizer::from_directory(base.folder());
  TextSource source;
  std::size_t skipped = 0;
  for (const Prompt& prompt : set.prompts) {
    const std::vector<TokenId> ids =
        tokenize_prompt(prompt, tokenizer, nullptr, {}, base.config().vocab_size);
    if (std::ssize(ids) < 2 * options.reuse.batch.block_length) {
      ++skipped;
      continue;
    }
    source.texts.emplace_back(ids.begin(), ids.end());
  }
  if (skipped > 0) {
    note("note: {}: {} texts are shorter than two blocks of {} tokens and are left out\n",
         options.data.string(), skipped, options.reuse.batch.block_length);
  }
  if (source.texts.empty()) {
    throw UsageError(
        fmt::format("--data: {}: expected a text of at least two blocks of {} tokens, got none. "
                    "HINT: --block-length sets shorter blocks",
                    options.data.string(), options.reuse.batch.block_length));
  }
  // Not --evaluate-documents: a resumed run may have another number, and must train on the same.
  source.held_out = source.texts.size() / kHeldOutOf;
  return source;
}

ReuseSource source_of(const TrainRunOptions& options, const Checkpoint& base) {
  if (!options.data.empty()) return texts_of(options, base);
  try {
    return load_task_tokens((base.folder() / "tokenizer.json").string());
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format(
        "{}. Without --data, stage reuse trains on the generated tasks, whose words this tokenizer "
        "must have. HINT: --data names a file of other texts",
        error.what()));
  }
}

/// The stage's options, with those that all stages share.
ReuseTrainOptions reuse_options_of(const TrainRunOptions& options) {
  ReuseTrainOptions reuse = options.reuse;
  reuse.seed = options.train.seed;
  reuse.warmup = options.train.warmup;
  reuse.decay_fraction = options.train.decay_fraction;
  reuse.batch_rows = options.train.batch_rows;
  reuse.first_level = options.train.first_level;
  reuse.last_level = options.train.last_level;
  if (options.data.empty()) {  // contexts of 64 have no chains, sums and sorts
    reuse.first_level =
        std::min<std::int64_t>(std::max<std::int64_t>(reuse.first_level, 1), reuse.last_level);
  }
  reuse.bfloat16 = options.train.bfloat16;
  reuse.device = options.train.device;
  reuse.settings = settings_json(options);
  return reuse;
}

void validate(const ReuseTrainer& trainer, const TrainRunOptions& options, CsvLog& log) {
  if (options.evaluate_documents == 0) return;
  const Moment start = std::chrono::steady_clock::now();
  const ReuseReport report = trainer.validate(options.evaluate_documents);
  if (report.positions == 0) return;  // fewer than ten texts: none is held out
  log.write(fmt::format("{},{}", trainer.steps_done(), measures(report)));
  say("  validation after step {}, context {}: loss {:.4f}, KL reuse {:.4f}, dense {:.4f}; argmax "
      "as the teacher's: reuse {:.2f} %, dense {:.2f} % ({:.0f} s)\n",
      trainer.steps_done(), report.context_length, report.loss, report.reuse_kl, report.dense_kl,
      100.0 * report.reuse_agreement(), 100.0 * report.dense_agreement(), since(start));
  std::fflush(stdout);
}

void print_progress(const ReuseTrainer& trainer, const ReuseReport& sum, std::int64_t steps,
                    double seconds) {
  const auto left = static_cast<double>(trainer.options().steps - trainer.steps_done());
  say("reuse {}/{} loss {:.4f} | KL reuse {:.4f} dense {:.4f} | argmax reuse {:.1f} % dense {:.1f} "
      "% | {:.0f} tokens/s, {:.1f} min left\n",
      trainer.steps_done(), trainer.options().steps, sum.loss, sum.reuse_kl, sum.dense_kl,
      100.0 * sum.reuse_agreement(), 100.0 * sum.dense_agreement(),
      static_cast<double>(sum.tokens) / seconds,
      seconds / static_cast<double>(steps) * left / 60.0);
  std::fflush(stdout);
}

/// Trains until the last step, a signal or the end of --minutes. Writes logs and states.
void make_reuse_steps(ReuseTrainer& trainer, const TrainRunOptions& options, Moment start) {
  const fs::path state = state_file(options, TrainStage::kReuse);
  const std::int64_t done = trainer.steps_done();
  CsvLog log(
      options.work / "reuse.csv",
      fmt::format("step,context,probes,tokens,{},learning_rate,gradient_norm,seconds", kMeasures),
      done);
  CsvLog validation(options.work / "reuse_validation.csv", fmt::format("step,{}", kMeasures),
                    done > 0 ? done + 1 : 0);
  if (done == 0) validate(trainer, options, validation);
  ReuseReport sum;
  std::int64_t steps = 0;
  double seconds = 0.0;
  const auto goes_on = [&] {
    return trainer.steps_done() < trainer.options().steps && InterruptGuard::signal() == 0 &&
           (options.minutes == 0.0 || since(start) <= options.minutes * 60.0);
  };
  while (goes_on()) {
    const Moment step_start = std::chrono::steady_clock::now();
    const ReuseReport report = trainer.step();
    const double took = since(step_start);
    log.write(fmt::format("{},{},{},{},{},{:.4g},{:.6g},{:.3f}", report.step, report.context_length,
                          report.probes, report.tokens, measures(report), report.learning_rate,
                          report.gradient_norm, took));
    sum.add(report);
    seconds += took;
    ++steps;
    const std::int64_t now = trainer.steps_done();
    const bool last = now == trainer.options().steps;
    if (now % options.report_every == 0 || last) {
      print_progress(trainer, sum, steps, seconds);
      sum = ReuseReport{};
      steps = 0;
      seconds = 0.0;
    }
    // Before the state is saved: a resumed run goes on after the line.
    if (last || (options.evaluate_every > 0 && now % options.evaluate_every == 0)) {
      validate(trainer, options, validation);
    }
    if (now % options.save_every == 0) trainer.save_state(state);
  }
  trainer.save_state(state);
}

}  // namespace

std::vector<fs::path> reuse_outputs(const TrainRunOptions& options) {
  std::vector<fs::path> outputs{options.out / kAdapterConfigName,
                                options.out / kAdapterWeightsName};
  if (!options.merge) return outputs;
  for (const std::string& name : merged_files(options.init)) {
    outputs.push_back(options.out / "merged" / name);
  }
  return outputs;
}

void run_reuse(const TrainRunOptions& options, Moment start) {
  Checkpoint base = Checkpoint::open(options.init);
  check_reuse_base(base);
  TrainRunOptions run = options;
  if (run.reuse.batch.block_length == 0) {
    run.reuse.batch.block_length = require_block_length(base.config());
  }
  const ReuseTrainOptions reuse = reuse_options_of(run);
  const std::int64_t shortest = std::int64_t{64} << reuse.first_level;
  if (run.data.empty() && 2 * run.reuse.batch.block_length > shortest) {
    throw UsageError(fmt::format(
        "--block-length: expected at most half of the shortest context of {} tokens, got {}. HINT: "
        "a longer --first-context",
        shortest, run.reuse.batch.block_length));
  }
  ReuseTrainer trainer(base, reuse, source_of(run, base));
  const fs::path state = state_file(run, TrainStage::kReuse);
  if (run.resume) {
    trainer.load_state(state);
    say("reuse: resumed {} at step {}\n", state.string(), trainer.steps_done());
  } else {
    fs::remove(state);  // --resume must not take another run's state for a state of this run
    say("reuse: {} trained parameters for {}\n", trainer.parameters(), run.init.string());
  }
  write_line(owner_file(run, TrainStage::kReuse), fs::absolute(run.out).string());
  make_reuse_steps(trainer, run, start);
  if (trainer.steps_done() < trainer.options().steps) {
    const std::string saved = fmt::format("step {}, saved {}. HINT: --resume goes on",
                                          trainer.steps_done(), state.string());
    InterruptGuard::check(fmt::format("reuse: {}", saved));
    say("reuse: stopped at {}\n", saved);
    return;
  }
  trainer.export_adapter(run.out, run.init.string());
  say("reuse: {} steps, {:.2f}M tokens, adapter written to {}\n", trainer.steps_done(),
      static_cast<double>(trainer.tokens_seen()) * 1e-6, run.out.string());
  if (!run.merge) return;
  base.adapt(run.out);
  export_merged(base, run.out / "merged");
  say("reuse: merged checkpoint written to {}\n", (run.out / "merged").string());
}

}  // namespace blockscope
