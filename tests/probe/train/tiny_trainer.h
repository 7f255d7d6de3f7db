// Tiny models, documents and folders for the tests of the trainer.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "probe/train/masked_attention.h"
#include "probe/train/train_run.h"
#include "probe/train/trainer.h"

namespace blockscope {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

inline ModelConfig tiny_config() {
  ModelConfig config = needle_model_config();
  config.num_layers = 2;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 12;
  return config;
}

inline TaskTokens needle_tokens() {
  return load_task_tokens(std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle/tokenizer.json");
}

inline TrainOptions tiny_options(TrainStage stage) {
  TrainOptions options;
  options.stage = stage;
  options.steps = 40;
  options.warmup = 4;
  options.batch_rows = 400;
  options.last_level = 1;
  return options;
}

class TempFolder {
 public:
  TempFolder() : path_(fs::temp_directory_path() / ("trainer-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Hidden states [T, hidden] of the one document in `batch`.
inline at::Tensor hidden_of(const Trainer& trainer, const TrainingBatch& batch) {
  const at::NoGradGuard no_grad;
  MaskedAttention seams(batch.mask, batch.chunks, at::kFloat);
  return trainer.model().forward(batch.tokens, batch.positions, seams)[0];
}

/// Which rows' hidden states change when the token of `row` changes.
inline std::vector<bool> reach_of(const Trainer& trainer, const TrainingBatch& batch,
                                  std::int64_t row) {
  TrainingBatch changed = batch;
  changed.tokens = batch.tokens.clone();
  changed.tokens[0][row] = (batch.tokens[0][row].item<std::int64_t>() + 7) % 900;
  const at::Tensor moved =
      (hidden_of(trainer, batch) - hidden_of(trainer, changed)).abs().amax(-1).gt(0);
  std::vector<bool> reach;
  for (std::int64_t i = 0; i < moved.size(0); ++i) reach.push_back(moved[i].item<bool>());
  return reach;
}

inline Ids counted(std::int64_t first, std::int64_t count) {
  Ids ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

inline TaskDocument document_of(std::size_t length) {
  TaskRandom random(TaskSplit::kTest, 77, length);
  DocumentSpec spec;
  spec.context_length = length;
  spec.needles = 6;
  spec.chains = 1;
  spec.questions = {2, 0, 1, 1, 1, 1, 1};
  return make_document(spec, random);
}

}  // namespace blockscope
