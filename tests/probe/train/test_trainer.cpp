// The trainer on tiny models: the masks of the first two objectives (by what a change of one token
// can reach), groups that equal single prompts, resuming bit for bit, the exported checkpoint.
#include <gtest/gtest.h>

#include "decode_record/base/error.h"
#include "tests/probe/train/tiny_trainer.h"

namespace blockscope {
namespace {

TEST(TrainingMasks, NoisyRowsSeeTheirOwnBlockAndCleanBlocksBeforeItNothingElse) {
  // B = 4. Rows: context 0-7 (blocks 0, 1) | noisy copy of block 1 8-11 | group 0: clean block 2
  // 12-15, noisy block 3 16-19, second noisy copy 20-23 | group 1: noisy block 2 24-27.
  BatchLayout layout(4);
  layout.begin_document();
  layout.add(counted(10, 8), 0, -1, 0);
  layout.add(counted(30, 4), 4, -1, 1);
  layout.add(counted(40, 4), 8, 0, 0);
  layout.add(counted(50, 4), 12, 0, 1);
  layout.add(counted(60, 4), 12, 0, 2);
  layout.add(counted(70, 4), 8, 1, 1);
  layout.add_loss(27, 1, -1, -1);
  const TrainingBatch batch = layout.finish(0);
  Trainer trainer(tiny_config(), tiny_options(TrainStage::kDiffusion), needle_tokens());
  trainer.initialise();
  const auto rows = [](std::initializer_list<std::pair<int, int>> ranges) {
    std::vector<bool> expected(28, false);
    for (const auto& [begin, end] : ranges) {
      for (int i = begin; i < end; ++i) expected[static_cast<std::size_t>(i)] = true;
    }
    return expected;
  };
  EXPECT_EQ(reach_of(trainer, batch, 2), rows({{0, 28}}));           // block 0: before everything
  EXPECT_EQ(reach_of(trainer, batch, 6), rows({{4, 8}, {12, 28}}));  // not its own noisy copy
  EXPECT_EQ(reach_of(trainer, batch, 9), rows({{8, 12}}));           // noisy: its copy only
  EXPECT_EQ(reach_of(trainer, batch, 13), rows({{12, 24}}));         // group 0, clean block 2
  EXPECT_EQ(reach_of(trainer, batch, 18), rows({{16, 20}}));         // bidirectional in the copy
  EXPECT_EQ(reach_of(trainer, batch, 20), rows({{20, 24}}));
  EXPECT_EQ(reach_of(trainer, batch, 27), rows({{24, 28}}));
}

TEST(TrainingBatches, ManyQuestionsOnOneContextEqualOnePromptEach) {
  // 600 words: long enough for the chunked attention.
  const TaskDocument document = document_of(600);
  ASSERT_EQ(document.questions.size(), 7U);
  const TaskTokens tokens = needle_tokens();
  Trainer trainer(tiny_config(), tiny_options(TrainStage::kBackbone), tokens);
  trainer.initialise();
  const at::NoGradGuard no_grad;
  const TrainingBatch together = make_backbone_batch({document}, tokens);
  const at::Tensor all = trainer.forward(together);
  std::int64_t compared = 0;
  for (std::size_t g = 0; g < document.questions.size(); ++g) {
    const TaskDocument single{document.context, {document.questions[g]}};
    const TrainingBatch alone = make_backbone_batch({single}, tokens);
    const at::Tensor logits = trainer.forward(alone);
    std::int64_t row = -1;
    for (std::size_t m = 0; m < together.questions.size(); ++m) {
      if (together.questions[m] != static_cast<int>(g)) continue;
      for (++row; alone.questions[static_cast<std::size_t>(row)] != 0;) ++row;
      EXPECT_LT((all[static_cast<std::int64_t>(m)] - logits[row]).abs().max().item<float>(), 1e-5);
      EXPECT_EQ(together.targets[static_cast<std::int64_t>(m)].item<std::int64_t>(),
                alone.targets[row].item<std::int64_t>());
      ++compared;
    }
  }
  EXPECT_GT(compared, 40);
}

TEST(TrainingBatches, AttentionInChunksEqualsOneCallOverTheWholeMask) {
  const TaskTokens tokens = needle_tokens();
  Trainer trainer(tiny_config(), tiny_options(TrainStage::kDiffusion), tokens);
  trainer.initialise();
  const at::NoGradGuard no_grad;
  for (const std::int64_t block : {8, 32}) {
    TaskRandom random(TaskSplit::kTrain, 9, static_cast<std::uint64_t>(block));
    TrainingBatch batch =
        make_diffusion_batch({document_of(620), document_of(430)}, tokens, {block, 2, 2}, random);
    EXPECT_GT(batch.chunks.size(), 4U);
    const at::Tensor chunked = trainer.forward(batch);
    const std::int64_t length = batch.tokens.size(1);
    batch.chunks = {{0, length, length, 0, 0}};
    EXPECT_LT((chunked - trainer.forward(batch)).abs().max().item<float>(), 1e-5);
  }
}

TEST(TrainingBatches, DiffusionLossRowsAreExactlyTheMaskedPositions) {
  const TaskTokens tokens = needle_tokens();
  for (const std::int64_t block : {8, 16, 32}) {
    TaskRandom random(TaskSplit::kTrain, 3, static_cast<std::uint64_t>(block));
    const TrainingBatch batch =
        make_diffusion_batch({document_of(200), document_of(150)}, tokens, {block, 2, 2}, random);
    at::Tensor in_loss = at::zeros({batch.tokens.numel()}, at::kBool);
    in_loss.index_fill_(0, batch.rows, true);
    EXPECT_TRUE(at::equal(in_loss, batch.tokens.flatten().eq(tokens.mask)));
    EXPECT_FALSE(batch.targets.eq(tokens.mask).any().item<bool>());
    EXPECT_NEAR(batch.weights.sum().item<float>(), 1.3, 1e-4);
    EXPECT_GT(batch.targets.eq(tokens.end).sum().item<std::int64_t>(), 0);  // fills the last block
  }
}

TEST(Trainer, ARunThatWasInterruptedAndResumedEndsWithTheSameBits) {
  const TempFolder folder;
  const fs::path state = folder.path() / "state.safetensors";
  for (const TrainStage stage : {TrainStage::kBackbone, TrainStage::kDiffusion}) {
    Trainer whole(tiny_config(), tiny_options(stage), needle_tokens());
    whole.initialise();
    Trainer first(tiny_config(), tiny_options(stage), needle_tokens());
    first.initialise();
    for (int i = 0; i < 6; ++i) whole.step();
    for (int i = 0; i < 3; ++i) first.step();
    first.save_state(state);
    Trainer second(tiny_config(), tiny_options(stage), needle_tokens());
    second.load_state(state);
    EXPECT_EQ(second.steps_done(), 3);
    for (int i = 0; i < 3; ++i) second.step();
    EXPECT_EQ(second.tokens_seen(), whole.tokens_seen());
    for (const auto& [name, weight] : whole.model().weights()) {
      EXPECT_TRUE(at::equal(weight, second.model().weights().at(name))) << name;
    }
  }
}

TEST(Trainer, TheLossOfATinyModelFalls) {
  for (const TrainStage stage : {TrainStage::kBackbone, TrainStage::kDiffusion}) {
    Trainer trainer(tiny_config(), tiny_options(stage), needle_tokens());
    trainer.initialise();
    const double first = trainer.step().loss;
    double last = 0.0;
    for (int i = 0; i < 30; ++i) last = trainer.step().loss;
    EXPECT_LT(last, 0.8 * first) << train_stage_name(stage);
  }
}

TEST(Trainer, TheExportedCheckpointHoldsTheWeightsInBfloat16) {
  const TempFolder folder;
  Trainer trainer(tiny_config(), tiny_options(TrainStage::kDiffusion), needle_tokens());
  trainer.initialise();
  trainer.export_checkpoint(folder.path(), std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle");
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.config().model_type, "sdar");
  EXPECT_EQ(require_mask_token_id(checkpoint.config()), trainer.tokens().mask);
  const BlockDiffusionModel model = BlockDiffusionModel::load(checkpoint, at::kFloat);
  for (const auto& [name, weight] : trainer.model().weights()) {
    EXPECT_TRUE(
        at::equal(weight.detach().to(at::kBFloat16).to(at::kFloat), model.weights().at(name)))
        << name;
  }
}

TEST(Trainer, AStateOfTheOtherStageOrAnotherShapeIsRefused) {
  const TempFolder folder;
  const fs::path state = folder.path() / "state.safetensors";
  Trainer trainer(tiny_config(), tiny_options(TrainStage::kBackbone), needle_tokens());
  trainer.save_state(state);
  Trainer other_stage(tiny_config(), tiny_options(TrainStage::kDiffusion), needle_tokens());
  EXPECT_THROW(other_stage.load_state(state), CheckpointError);
  ModelConfig wider = tiny_config();
  wider.intermediate_size += 16;
  Trainer other_shape(wider, tiny_options(TrainStage::kBackbone), needle_tokens());
  EXPECT_THROW(other_shape.load_state(state), CheckpointError);
}

}  // namespace
}  // namespace blockscope
