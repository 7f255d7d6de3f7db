// Trains a LoRA adapter for FlashBlock's reuse (stage reuse; reuse_objective.h). Every batch
// depends only on (seed, step), and so does dropout. A resumed run therefore goes on bit for bit as
// if it had not stopped (with as many threads).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "probe/checkpoint/adapter.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/train/flat_parameters.h"
#include "probe/train/reuse_objective.h"
#include "probe/train/trainer.h"

namespace blockscope {

/// Texts to probe: the last `held_out` are for validation.
struct TextSource {
  std::vector<TokenIds> texts;
  std::size_t held_out = 0;
};
/// Documents of the task generator, or texts.
using ReuseSource = std::variant<TaskTokens, TextSource>;

struct ReuseTrainOptions {
  LoraOptions lora;
  ReuseObjective objective;
  ReuseBatchSpec batch;
  std::uint64_t seed = 1;
  std::int64_t steps = 500;
  double learning_rate = 1e-3;
  std::int64_t warmup = 50;
  double decay_fraction = 0.3;
  AdamOptions adam{.weight_decay = 0.05, .clip = 1.0};
  std::int64_t batch_rows = 2048;  // target number of rows per batch: true tokens, and probes
  std::int64_t first_level = 1, last_level = 4;  // contexts of 64 << level, drawn evenly
  bool bfloat16 = false;
  std::string device = "cpu";
  std::string settings = "{}";  // JSON text of the run's settings, for its state
};

/// The report of one step, or of a validation.
struct ReuseReport {
  std::int64_t step = 0;
  std::int64_t context_length = 0;
  std::int64_t probes = 0;  // blocks, with padding
  std::int64_t tokens = 0;  // true tokens and probe rows that went through the models
  std::int64_t positions = 0, reuse_agrees = 0, dense_agrees = 0;
  double loss = 0.0, reuse_kl = 0.0, dense_kl = 0.0;
  double learning_rate = 0.0, gradient_norm = 0.0;

  double reuse_agreement() const { return share(reuse_agrees); }
  double dense_agreement() const { return share(dense_agrees); }
  /// Adds a batch; its losses count by its positions.
  void add(const ReuseReport& other);

 private:
  double share(std::int64_t count) const {
    return positions > 0 ? static_cast<double>(count) / static_cast<double>(positions) : 0.0;
  }
};

/// Throws CheckpointError for a base that is not of SDAR's family or has no mask token.
void check_reuse_base(const Checkpoint& base);

class ReuseTrainer {
 public:
  /// A is drawn uniformly (PEFT's initialisation); B is zero. The base has passed
  /// check_reuse_base().
  ReuseTrainer(const Checkpoint& base, ReuseTrainOptions options, ReuseSource source);

  ReuseReport step();
  /// The losses on `documents` held-out documents, without dropout and with evenly spaced probes.
  ReuseReport validate(std::size_t documents) const;

  void save_state(const std::filesystem::path& path) const;
  void load_state(const std::filesystem::path& path);
  /// Writes adapter_config.json and adapter_model.safetensors (float32). `base`: the checkpoint's
  /// name in adapter_config.json.
  void export_adapter(const std::filesystem::path& folder, const std::string& base) const;

  std::int64_t steps_done() const { return step_; }
  std::int64_t tokens_seen() const { return tokens_seen_; }
  std::int64_t parameters() const;
  const ReuseTrainOptions& options() const { return options_; }

 private:
  ReuseBatch make_batch(std::int64_t context, std::int64_t documents, const ReuseBatchSpec& spec,
                        std::size_t first_held_out, TaskRandom& random, bool held_out) const;
  /// About how many rows the probes of a document have.
  std::int64_t probe_rows(std::int64_t context) const;
  std::map<std::string, LowRank> parts(double dropout) const;
  double learning_rate() const;

  ReuseTrainOptions options_;
  ReuseSource source_;
  std::string base_digest_;
  std::vector<AdapterTarget> targets_;
  FlatParameters parameters_;  // A and B of every target, in that order
  BlockDiffusionModel teacher_;
  BlockDiffusionModel student_;    // with dropout
  BlockDiffusionModel evaluated_;  // without
  std::int64_t step_ = 0;
  std::int64_t tokens_seen_ = 0;
};

}  // namespace blockscope
