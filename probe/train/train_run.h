// A whole training run: its stages, log file, states, progress lines and stop signals.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "probe/train/reuse_trainer.h"
#include "probe/train/trainer.h"

namespace blockscope {

struct TrainRunOptions {
  TrainOptions train;           // `stage` and `steps` are set per stage
  ModelConfig model;            // shapes
  std::string family = "sdar";  // decides weight names and the diffusion stage's objective
  bool backbone = true, diffusion = true, draft = false, reuse_stage = false;
  std::int64_t backbone_steps = 4000;
  std::int64_t diffusion_steps = 1100;
  std::int64_t draft_steps = 3000;
  double diffusion_learning_rate = 1.5e-3;
  double draft_learning_rate = 2e-3;
  double diffusion_advance_below = 0.5;     // higher, because of blocks that are all masks
  double draft_advance_below = 0.7;         // higher, because of a draft's later positions
  std::int64_t draft_block = 16;            // block_size of the draft
  std::vector<std::int64_t> target_layers;  // empty: default_target_layers()
  ReuseTrainOptions reuse;                  // of stage reuse; block length 0: the base's
  std::filesystem::path data;               // texts of stage reuse; empty: generated tasks
  bool merge = false;                       // stage reuse also writes OUT/merged
  std::filesystem::path out;                // the backbone goes to out/backbone
  std::filesystem::path tokenizer = "models/needle";  // folder with tokenizer.json; draft: target's
  std::filesystem::path work = "build/training";      // states and logs
  std::filesystem::path init;  // starting weights of the first stage; the base of stage reuse
  bool resume = false;
  bool force = false;             // replace checkpoints and states of other runs
  double minutes = 0.0;           // stop and save after this long; 0: no limit
  std::int64_t save_every = 200;  // steps
  std::int64_t report_every = 20;
  std::int64_t evaluate_every = 500;  // 0: only at a stage's end
  std::size_t evaluate_documents = 8;
};

/// Small shapes with head_dim != hidden / heads and 3 query heads per KV head: 2.2M parameters.
ModelConfig needle_model_config();

/// These shapes as a model of this family, or of its backbone's family (FamilyTraining::fit).
/// Throws UsageError for shapes that the family can't have.
ModelConfig in_family(ModelConfig shapes, const std::string& name);

/// Returns when every stage reached its last step, or when --minutes are over and the state is
/// saved. Checks every output before the first step: throws UsageError if a checkpoint or state of
/// another run would be replaced without `force`, or if there is no state to resume. The caller
/// holds an InterruptGuard. After a signal it saves the state, from which --resume goes on, and
/// throws InterruptedError.
void run_training(const TrainRunOptions& options);

}  // namespace blockscope
