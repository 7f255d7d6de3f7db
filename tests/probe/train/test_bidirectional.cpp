// LLaDA's objective on tiny models: who sees whom, what is masked and what it weighs, resuming bit
// for bit, the exported checkpoint.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "decode_record/base/error.h"
#include "probe/train/evaluation.h"
#include "tests/probe/train/tiny_trainer.h"

namespace blockscope {
namespace {

Trainer tiny_llada() {
  Trainer trainer(in_family(tiny_config(), "llada"), tiny_options(TrainStage::kDiffusion),
                  needle_tokens());
  trainer.initialise();
  return trainer;
}

std::size_t padded(std::size_t words) { return (words + 1 + 7) / 8 * 8; }

TEST(BidirectionalRows, EveryTokenReachesEveryRow) {
  const Trainer trainer = tiny_llada();
  TaskRandom random(TaskSplit::kTrain, 1, 1);
  const TrainingBatch batch =
      make_bidirectional_batch({document_of(120)}, trainer.tokens(), 3, random);
  const std::int64_t length = batch.tokens.size(1);
  for (const std::int64_t row : {std::int64_t{0}, length / 2, length - 1}) {
    const std::vector<bool> reach = reach_of(trainer, batch, row);
    EXPECT_EQ(std::count(reach.begin(), reach.end(), true), length) << row;
  }
}

TEST(BidirectionalRows, AShorterSequenceBesideALongerOneIsAsAlone) {
  const Trainer trainer = tiny_llada();
  const at::NoGradGuard no_grad;
  TrainingBatch alone = bidirectional_rows({counted(20, 30)}, 0);
  TrainingBatch beside = bidirectional_rows({counted(20, 30), counted(100, 50)}, 0);
  alone.rows = beside.rows = at::arange(30, at::kLong);
  const at::Tensor difference = trainer.forward(alone) - trainer.forward(beside);
  EXPECT_LT(difference.abs().max().item<float>(), 1e-5);
  EXPECT_FALSE(
      trainer.model()
          .forward(beside.tokens, beside.positions,
                   *std::make_unique<MaskedAttention>(beside.mask, beside.chunks, at::kFloat))
          .isnan()
          .any()
          .item<bool>());
}

TEST(BidirectionalBatches, OneQuestionIsLaidOutAsDecodingHasIt) {
  const TaskTokens tokens = needle_tokens();
  const TaskDocument document = document_of(150);
  const TaskQuestion& question = document.questions.front();
  Ids prompt = tokens.encode(document.context);
  const Ids asked = tokens.encode(question.question);
  prompt.insert(prompt.end(), asked.begin(), asked.end());
  Ids answer = tokens.encode(question.answer);
  std::set<std::size_t> lengths;
  std::map<std::size_t, int> masked_counts;
  for (std::uint64_t i = 0; i < 200; ++i) {
    TaskRandom random(TaskSplit::kTrain, 2, i);
    const TrainingBatch batch = make_bidirectional_batch({document}, tokens, 1, random);
    const auto length = static_cast<std::size_t>(batch.tokens.size(1)) - prompt.size();
    lengths.insert(length);
    Ids clean = prompt;
    clean.insert(clean.end(), answer.begin(), answer.end());
    clean.resize(prompt.size() + length, tokens.end);
    Ids noisy = clean;
    ASSERT_GT(batch.rows.numel(), 0);
    for (std::int64_t m = 0; m < batch.rows.numel(); ++m) {
      const auto row = static_cast<std::size_t>(batch.rows[m].item<std::int64_t>());
      ASSERT_GE(row, prompt.size());  // nothing of the prompt is masked
      EXPECT_EQ(batch.targets[m].item<std::int64_t>(), clean[row]);
      // The words and the first end token are the answer; what fills the length is not.
      const bool own = row - prompt.size() <= answer.size();
      EXPECT_EQ(batch.tasks[static_cast<std::size_t>(m)],
                own ? static_cast<int>(question.task) : -1);
      noisy[row] = tokens.mask;
    }
    const at::Tensor expected = at::tensor(noisy, at::kLong);
    EXPECT_TRUE(at::equal(batch.tokens[0], expected));
    ++masked_counts[static_cast<std::size_t>(batch.rows.numel()) * 10 / length];
  }
  std::set<std::size_t> all;
  for (std::size_t n = padded(answer.size()); n <= 32; n += 8) all.insert(n);
  EXPECT_EQ(lengths, all);
  EXPECT_GT(masked_counts[10], 15);  // all masked: a sixth of 200, as decoding begins
  EXPECT_GT(masked_counts[0] + masked_counts[1], 10);
}

TEST(BidirectionalBatches, EveryQuestionWeighsTheSameWhateverIsMaskedOfIt) {
  const TaskTokens tokens = needle_tokens();
  TaskRandom random(TaskSplit::kTrain, 3, 1);
  const TrainingBatch batch =
      make_bidirectional_batch({document_of(150), document_of(230)}, tokens, 5, random);
  EXPECT_EQ(batch.num_questions, 10);
  EXPECT_EQ(batch.tokens.eq(tokens.mask).sum().item<std::int64_t>(), batch.rows.numel());
  std::map<int, double> words;
  double fill = 0.0;
  for (std::size_t m = 0; m < batch.questions.size(); ++m) {
    const double weight = batch.weights[static_cast<std::int64_t>(m)].item<float>();
    if (batch.questions[m] < 0) {
      fill += weight;
    } else {
      words[batch.questions[m]] += weight;
    }
  }
  EXPECT_GE(words.size(), 8U);
  for (const auto& [question, weight] : words) EXPECT_NEAR(weight, 0.1, 1e-5) << question;
  EXPECT_GT(fill, 0.0);
  EXPECT_LE(fill, 0.3 + 1e-5);
}

TEST(BidirectionalTrainer, ARunThatWasInterruptedAndResumedEndsWithTheSameBits) {
  const TempFolder folder;
  const fs::path state = folder.path() / "state.safetensors";
  Trainer whole = tiny_llada();
  for (int i = 0; i < 6; ++i) whole.step();
  Trainer first = tiny_llada();
  for (int i = 0; i < 3; ++i) first.step();
  first.save_state(state);
  Trainer second = tiny_llada();
  second.load_state(state);
  for (int i = 0; i < 3; ++i) second.step();
  EXPECT_EQ(second.tokens_seen(), whole.tokens_seen());
  for (const auto& [name, weight] : whole.model().weights()) {
    EXPECT_TRUE(at::equal(weight, second.model().weights().at(name))) << name;
  }
}

TEST(BidirectionalTrainer, TheLossFalls) {
  Trainer trainer = tiny_llada();
  const double first = trainer.step().loss;
  double last = 0.0;
  for (int i = 0; i < 30; ++i) last = trainer.step().loss;
  EXPECT_LT(last, 0.8 * first);
}

TEST(BidirectionalTrainer, OutputProjectionsBeginSmallerAndOnlyThey) {
  const Trainer trainer = tiny_llada();
  for (const auto& [name, weight] : trainer.model().weights()) {
    if (weight.dim() < 2) continue;
    const bool output = name.ends_with("attn_out.weight") || name.ends_with("ff_out.weight");
    EXPECT_NEAR(weight.std().item<double>(), output ? 0.01 : 0.02, 0.002) << name;  // 2 layers
  }
}

TEST(BidirectionalTrainer, TheExportedCheckpointIsOneOfLlada) {
  const TempFolder folder;
  const Trainer trainer = tiny_llada();
  trainer.export_checkpoint(folder.path(), std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle");
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const ModelConfig& read = checkpoint.config();
  EXPECT_EQ(read.model_type, "llada");
  EXPECT_TRUE(read.attention_bidirectional);
  EXPECT_EQ(read.head_dim, 8);  // 32 / 4
  EXPECT_EQ(read.num_kv_heads, 2);
  EXPECT_EQ(read.intermediate_size, 48);
  EXPECT_EQ(read.rope.theta, trainer.model().config().rope.theta);
  EXPECT_EQ(read.rms_norm_eps, trainer.model().config().rms_norm_eps);
  EXPECT_EQ(read.max_position_embeddings, trainer.model().config().max_position_embeddings);
  EXPECT_EQ(require_mask_token_id(read), trainer.tokens().mask);
  EXPECT_EQ(read.stop_token_ids, std::vector<std::int64_t>{trainer.tokens().end});
  const BlockDiffusionModel model = BlockDiffusionModel::load(checkpoint, at::kFloat);
  for (const auto& [name, weight] : trainer.model().weights()) {
    EXPECT_TRUE(
        at::equal(weight.detach().to(at::kBFloat16).to(at::kFloat), model.weights().at(name)))
        << name;
  }
  Trainer again(in_family(tiny_config(), "llada"), tiny_options(TrainStage::kDiffusion),
                needle_tokens());
  EXPECT_NO_THROW(again.load_weights(folder.path()));
  Trainer other(tiny_config(), tiny_options(TrainStage::kDiffusion), needle_tokens());
  EXPECT_THROW(other.load_weights(folder.path()), CheckpointError);
}

TEST(BidirectionalEvaluation, TheShippedModelAnswersNeedlesWithEveryBlockLength) {
  const std::string folder = std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle-bidirectional";
  const Checkpoint checkpoint = Checkpoint::open(folder);
  ModelConfig shapes = needle_model_config();
  shapes.hidden_size = checkpoint.config().hidden_size;
  shapes.intermediate_size = checkpoint.config().intermediate_size;
  const auto right_of = [&](bool load, std::int64_t block) {
    Trainer trainer(in_family(shapes, "llada"), tiny_options(TrainStage::kDiffusion),
                    load_task_tokens(folder + "/tokenizer.json"));
    trainer.initialise();
    if (load) trainer.load_weights(folder);
    EvaluationSpec spec;
    spec.context_length = 128;
    spec.documents = 1;
    spec.block_length = block;
    const EvaluationReport report = evaluate(trainer, spec);
    EXPECT_EQ(report.asked[static_cast<std::size_t>(Task::kNeedle)], 4);
    EXPECT_EQ(report.asked[static_cast<std::size_t>(Task::kSort)], 2);
    return report.right[static_cast<std::size_t>(Task::kNeedle)] +
           report.right[static_cast<std::size_t>(Task::kCopy)];
  };
  for (const std::int64_t block : {8, 32}) EXPECT_EQ(right_of(true, block), 6) << block;
  EXPECT_EQ(right_of(false, 16), 0);
}

TEST(BidirectionalTrainer, HeadsMustDivideTheHiddenSizeEvenly) {
  ModelConfig config = tiny_config();
  config.hidden_size = 36;  // 9 channels a head
  EXPECT_THROW(in_family(config, "llada"), UsageError);
  EXPECT_NO_THROW(in_family(config, "sdar"));
}

}  // namespace
}  // namespace blockscope
