// The draft's objective: its batches and its evaluation compared with the decoder that uses drafts,
// and what a training run of any stage must do.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "decode_record/base/error.h"
#include "probe/draft/draft_decoder.h"
#include "probe/train/draft_batch.h"
#include "probe/train/evaluation.h"
#include "tests/probe/train/tiny_trainer.h"

namespace blockscope {
namespace {

constexpr std::int64_t kBlock = 8;

const Checkpoint& backbone() {
  static const Checkpoint checkpoint =
      Checkpoint::open(std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle/backbone");
  return checkpoint;
}

Trainer draft_trainer(std::uint64_t seed = 1) {
  TrainOptions options = tiny_options(TrainStage::kDraft);
  options.target = backbone().folder();
  options.seed = seed;
  ModelConfig shapes = tiny_config();
  const TaskTokens tokens = needle_tokens();
  return {draft_config_for(backbone(), shapes, kBlock, tokens.mask, {1, 5}), options, tokens};
}

/// A target and a draft as decoding has them, in float32.
struct Pair {
  explicit Pair(const Trainer& trainer)
      : target(BlockDiffusionModel::load(backbone(), at::kFloat)), draft(trainer.model()) {}
  BlockDiffusionModel target;
  DraftModel draft;
};

DecodeRequest given_answer(const Ids& prompt, const Ids& answer) {
  DecodeRequest request;
  request.prompt = prompt;
  request.gen_length = std::ssize(answer);
  request.replayed = true;
  ReplayStep step;
  step.tokens = answer;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    step.positions.push_back(std::ssize(prompt) + static_cast<std::int64_t>(i));
  }
  request.replay = {step};
  return request;
}

/// Keeps the draft's logits of the first round.
class FirstLogits : public DecodeObserver {
 public:
  bool wants_logits() const override { return true; }
  void on_masked_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                        const std::vector<std::vector<bool>>& /*predicted*/,
                        const at::Tensor& shown) override {
    if (!logits.defined()) logits = shown.clone();
  }
  at::Tensor logits;  // [B - 1, V]
};

Ids question_ids(const TaskTokens& tokens, const TaskDocument& document, std::size_t question) {
  Ids ids = tokens.encode(document.context);
  const Ids asked = tokens.encode(document.questions[question].question);
  ids.insert(ids.end(), asked.begin(), asked.end());
  return ids;
}

Ids whole_answer(const TaskTokens& tokens, const TaskQuestion& question) {
  Ids answer = tokens.encode(question.answer);
  answer.push_back(tokens.end);
  return answer;
}

TEST(DraftBatches, EveryAnchorAsksWhatARoundOfTheDecoderAsks) {
  Trainer trainer = draft_trainer();
  trainer.initialise();
  for (int i = 0; i < 5; ++i) trainer.step();
  const Pair pair(trainer);
  const TaskTokens& tokens = trainer.tokens();
  const TaskDocument first = document_of(120);
  const TaskDocument second = document_of(90);
  TaskRandom random(TaskSplit::kTest, 1, 1);
  const at::NoGradGuard no_grad;
  const TrainingBatch batch = make_draft_batch({first, second}, tokens, {kBlock, 0}, random);
  const at::Tensor logits = trainer.forward(batch);
  std::int64_t row = 0;
  std::int64_t anchors = 0;
  for (const TaskDocument* document : {&first, &second}) {
    for (std::size_t g = 0; g < document->questions.size(); ++g) {
      const Ids prompt = question_ids(tokens, *document, g);
      const Ids answer = whole_answer(tokens, document->questions[g]);
      for (std::size_t anchor = 0; anchor + 1 < answer.size(); ++anchor) {
        const auto from = answer.begin() + static_cast<std::ptrdiff_t>(anchor);
        const std::int64_t rows = std::min<std::int64_t>(kBlock - 1, answer.end() - from - 1);
        const at::Tensor taught = logits.narrow(0, row, rows);
        for (std::int64_t k = 0; k < rows; ++k) {
          EXPECT_EQ(batch.targets[row + k].item<std::int64_t>(), from[k + 1]);
          EXPECT_NEAR((batch.weights[row + k] / batch.weights[row]).item<double>(),
                      std::exp(-static_cast<double>(k) / 4.0), 1e-5);  // gamma of 8 positions
        }
        row += rows;
        if (anchor % 3 != 0) continue;  // each is a run of its own
        ++anchors;
        Ids before = prompt;
        before.insert(before.end(), answer.begin(), from);
        FirstLogits observer;
        std::int64_t pass = 0;
        decode_drafted({pair.target, pair.draft, kBlock, {}, {}},
                       {given_answer(before, {*from, *(from + 1)})}, pass, {&observer, {}, {}});
        ASSERT_TRUE(observer.logits.defined());
        EXPECT_LT((observer.logits.narrow(0, 0, rows) - taught).abs().max().item<float>(), 2e-4);
      }
    }
  }
  EXPECT_EQ(row, batch.rows.size(0));
  EXPECT_NEAR(batch.weights.sum().item<double>(), 1.0, 1e-5);
  EXPECT_GT(anchors, 20);
}

TEST(DraftBatches, AFewAnchorsOfEachAnswerAreDrawnAndTheFirstIsAmongThem) {
  const TaskTokens tokens = needle_tokens();
  const TaskDocument document = document_of(120);
  TaskRandom random(TaskSplit::kTrain, 1, 1);
  const TrainingBatch batch = make_draft_batch({document}, tokens, {kBlock, 2}, random);
  const at::Tensor certain = batch.tokens[0].ne(tokens.mask).nonzero().flatten();
  std::size_t expected = 0;
  for (const TaskQuestion& question : document.questions) {
    expected += std::min<std::size_t>(2, question.answer.size());
  }
  ASSERT_EQ(certain.size(0), static_cast<std::int64_t>(expected));
  EXPECT_TRUE(at::equal(certain, at::arange(certain.size(0), at::kLong) * kBlock));
  const TaskQuestion& question = document.questions.front();
  const std::int64_t answer =
      std::ssize(document.context) + static_cast<std::int64_t>(question.question.size());
  EXPECT_EQ(batch.positions[0][0].item<std::int64_t>(), answer);
  EXPECT_EQ(batch.tokens[0][0].item<std::int64_t>(), tokens.encode(question.answer).front());
}

TEST(DraftTraining, TheEvaluationCountsTheDecodersRounds) {
  Trainer trainer = draft_trainer();
  trainer.initialise();
  for (int i = 0; i < 40; ++i) trainer.step();
  EvaluationSpec spec;
  spec.context_length = 128;
  spec.documents = 1;
  spec.block_length = kBlock;
  const EvaluationReport report = evaluate(trainer, spec);
  // The same document again, by the decoder.
  TaskRandom random(TaskSplit::kTest, 1U << 20, 128);
  DocumentSpec document;
  document.context_length = 128 - 24;
  document.needles = needles_for_context(128);
  document.sentences = 2;
  document.chains = 1;
  document.questions = {4, 2, 2, 1, 2, 2, 2};
  const TaskDocument written = make_document(document, random);
  const Pair pair(trainer);
  std::array<std::int64_t, kNumTasks> tokens{};
  std::array<std::int64_t, kNumTasks> rounds{};
  for (std::size_t g = 0; g < written.questions.size(); ++g) {
    const Ids answer = whole_answer(trainer.tokens(), written.questions[g]);
    const auto task = static_cast<std::size_t>(written.questions[g].task);
    std::int64_t pass = 0;
    const auto outcomes =
        decode_drafted({pair.target, pair.draft, kBlock, {}, {}},
                       {given_answer(question_ids(trainer.tokens(), written, g), answer)}, pass);
    rounds[task] += outcomes.front().denoising_steps;
    tokens[task] += std::ssize(answer) - 1;
  }
  EXPECT_EQ(report.rounds, rounds);
  EXPECT_EQ(report.tokens, tokens);
  EXPECT_LT(std::accumulate(rounds.begin(), rounds.end(), std::int64_t{0}),
            std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}));  // some are accepted
}

TEST(DraftTraining, TheLossFallsAndAResumedRunEndsWithTheSameBits) {
  const TempFolder folder;
  const fs::path state = folder.path() / "state.safetensors";
  Trainer whole = draft_trainer();
  whole.initialise();
  const double first = whole.step().loss;
  for (int i = 1; i < 6; ++i) whole.step();
  Trainer begun = draft_trainer();
  begun.initialise();
  for (int i = 0; i < 3; ++i) begun.step();
  begun.save_state(state);
  Trainer resumed = draft_trainer();
  resumed.load_state(state);
  for (int i = 0; i < 3; ++i) resumed.step();
  for (const auto& [name, weight] : whole.model().weights()) {
    EXPECT_TRUE(at::equal(weight, resumed.model().weights().at(name))) << name;
  }
  double last = 0.0;
  for (int i = 0; i < 30; ++i) last = whole.step().loss;
  EXPECT_LT(last, 0.8 * first);
}

TEST(DraftTraining, TheExportedDraftIsOneForItsTargetAlone) {
  const TempFolder folder;
  Trainer trainer = draft_trainer();
  trainer.initialise();
  trainer.export_checkpoint(folder.path(), backbone().folder());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.config().draft.has_value());
  const DraftConfig& config = *checkpoint.config().draft;
  EXPECT_EQ(config.block_size, kBlock);
  EXPECT_EQ(config.target_layers, (std::vector<std::int64_t>{1, 5}));
  EXPECT_EQ(config.num_target_layers, 6);
  EXPECT_EQ(config.mask_token_id, trainer.tokens().mask);
  EXPECT_FALSE(fs::exists(folder.path() / "tokenizer.json"));  // its target's
  const DraftModel draft = DraftModel::load(checkpoint, at::kFloat);
  for (const auto& [name, weight] : trainer.model().weights()) {
    EXPECT_TRUE(at::equal(weight.detach().to(at::kBFloat16).to(at::kFloat),
                          draft.body().weights().at(name)))
        << name;
  }
  draft.check_target(backbone().config(), backbone().digest());
  EXPECT_THROW(draft.check_target(backbone().config(), "another"), CheckpointError);
}

TEST(DraftTraining, WhatIsNoTargetIsRefused) {
  const Checkpoint diffusion =
      Checkpoint::open(std::string(BLOCKSCOPE_SOURCE_DIR) + "/models/needle");
  EXPECT_THROW(draft_config_for(diffusion, tiny_config(), kBlock, 1018, {}), UsageError);
  EXPECT_THROW(check_draft_target(diffusion.folder()), UsageError);
  EXPECT_THROW(check_draft_target("no-such-folder"), UsageError);
  EXPECT_NO_THROW(check_draft_target(backbone().folder()));
  EXPECT_THROW(draft_config_for(backbone(), tiny_config(), kBlock, 1018, {1, 6}), UsageError);
  EXPECT_EQ(draft_config_for(backbone(), tiny_config(), kBlock, 1018, {}).draft->target_layers,
            (std::vector<std::int64_t>{1, 3}));
  Trainer trainer = draft_trainer();
  EXPECT_THROW(trainer.load_weights(backbone().folder()), CheckpointError);
}

}  // namespace
}  // namespace blockscope
