// Trains the shipped model with AdamW and a curriculum over context lengths. Every batch depends
// only on (seed, step), so a resumed run goes on bit for bit as if it had not stopped (with as many
// threads).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "probe/model/block_diffusion_model.h"
#include "probe/train/draft_objective.h"
#include "probe/train/flat_parameters.h"
#include "probe/train/training_batch.h"

namespace blockscope {

/// Curriculum levels are contexts of 64 << level words, up to 4,096.
inline constexpr int kMostLevel = 6;
inline constexpr std::int64_t kLongestContext = std::int64_t{64} << kMostLevel;

enum class TrainStage { kBackbone, kDiffusion, kDraft, kReuse };
const char* train_stage_name(TrainStage stage);

/// The learning rate of a step: linear warm-up, then the peak, then a linear fall to 2 % of it over
/// the last share of the steps.
double scheduled_rate(double peak, std::int64_t step, std::int64_t steps, std::int64_t warmup,
                      double decay_fraction);

struct TrainOptions {
  TrainStage stage = TrainStage::kBackbone;
  std::uint64_t seed = 1;
  std::int64_t steps = 2000;  // of this stage
  double learning_rate = 2e-3;
  std::int64_t warmup = 50;     // steps of linear warm-up
  double decay_fraction = 0.3;  // last share of the steps, in which the rate falls to 2 %
  AdamOptions adam;
  std::int64_t batch_rows = 2048;  // target number of rows per batch; at least 2 documents
  double advance_below = 0.3;      // next context length if 40 batches' answer loss is below it
  double drill_share = 0.4;        // share of drill batches once the curriculum is past level 0
  int first_level = 0;             // curriculum level to start at: context 64 << level
  int last_level = 4;
  bool bfloat16 = false;         // autocast; parameters and optimiser stay float32
  std::string device = "cpu";    // or cuda:N, opened
  std::filesystem::path target;  // stage draft: the checkpoint that it drafts for
  std::string settings = "{}";   // JSON text of the run's settings, for its state
};

/// The report of one step. Losses are means in nats.
struct StepReport {
  std::int64_t step = 0;
  int level = 0;  // curriculum level of this batch
  std::int64_t context_length = 0;
  std::int64_t block_length = 0;  // 0 for the backbone and for LLaDA's objective
  std::int64_t rows = 0;          // tokens that went through the model
  double loss = 0.0;              // the value that is minimised
  double answer_loss = 0.0;
  double learning_rate = 0.0;
  double gradient_norm = 0.0;
  std::array<std::int64_t, kNumTasks> answer_rows{};
  std::array<std::int64_t, kNumTasks> answer_right{};  // argmax equals target
};

class Trainer {
 public:
  /// For a draft, `config` comes from draft_config_for().
  Trainer(ModelConfig config, TrainOptions options, TaskTokens tokens);

  /// Fresh weights: normal(0, 0.02), output projections scaled by 1/sqrt(2 * layers), norms 1.
  void initialise();
  /// Loads the weights of a checkpoint folder: a backbone, which becomes the diffusion model, or a
  /// draft, which is trained further.
  void load_weights(const std::filesystem::path& folder);

  StepReport step();

  /// Weights, optimiser, step and curriculum as one safetensors file (float32).
  void save_state(const std::filesystem::path& path) const;
  void load_state(const std::filesystem::path& path);
  /// Writes model.safetensors (bfloat16), config.json and generation_config.json into `folder`, and
  /// copies the tokenizer's files from `tokenizer_folder`. A draft gets no tokenizer files, because
  /// it uses its target's.
  void export_checkpoint(const std::filesystem::path& folder,
                         const std::filesystem::path& tokenizer_folder) const;

  std::int64_t steps_done() const { return step_; }
  std::int64_t tokens_seen() const { return tokens_seen_; }
  int level() const { return level_; }
  const TrainOptions& options() const { return options_; }
  const TaskTokens& tokens() const { return tokens_; }
  const BlockDiffusionModel& model() const { return model_; }

  /// Logits [M, vocab] of the batch's loss rows.
  at::Tensor forward(const TrainingBatch& batch) const;

 private:
  TrainingBatch next_batch(StepReport& report) const;
  std::vector<TaskDocument> next_documents(std::int64_t rows_per_document, bool drill, int level,
                                           TaskRandom& random) const;
  TrainingBatch next_draft_batch(StepReport& report, bool drill, TaskRandom& random) const;
  TrainingBatch next_bidirectional_batch(bool drill, int level, TaskRandom& random) const;
  double learning_rate() const;

  ModelConfig config_;
  TrainOptions options_;
  TaskTokens tokens_;
  FlatParameters parameters_;  // the model's weights
  BlockDiffusionModel model_;
  std::optional<DraftObjective> target_;  // stage draft only
  std::int64_t step_ = 0;
  std::int64_t tokens_seen_ = 0;
  int level_ = 0;
  std::deque<double> recent_;  // answer losses of the current level's batches, at most 40
};

/// The files that export_checkpoint writes into its folder.
inline constexpr std::array<const char*, 3> kCheckpointFiles{"model.safetensors", "config.json",
                                                             "generation_config.json"};
/// The files that it copies into its folder, unless they exist already.
inline constexpr std::array<const char*, 3> kTokenizerFiles{
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};

/// A document of a training batch at a curriculum level.
DocumentSpec training_spec(int level, TaskRandom& random);
/// A document of a drill batch: at most 64 words, and mostly sums and sorts, which do not depend on
/// the context. Drills train several times as many sums per second as the curriculum.
DocumentSpec drill_spec(TaskRandom& random);

}  // namespace blockscope
