#include "probe/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/train/autocast_guard.h"
#include "probe/train/draft_batch.h"
#include "probe/train/masked_attention.h"

namespace blockscope {
namespace {

constexpr std::size_t kAdvanceBatches = 40;
// Share of the batches at the current level while the curriculum climbs; the others repeat earlier
// levels. On the last level most batches are short again: short batches are cheap, and what is left
// to learn does not need a long context. Drill batches are not included.
constexpr double kClimbingShare = 0.7;
constexpr double kLastLevelShare = 0.3;
constexpr double kSingleShare = 0.4;  // of LLaDA's batches: documents with one question
constexpr std::array<std::int64_t, 3> kBlockLengths = {8, 16, 32};

}  // namespace

const char* train_stage_name(TrainStage stage) {
  switch (stage) {
    case TrainStage::kBackbone:
      return "backbone";
    case TrainStage::kDiffusion:
      return "diffusion";
    case TrainStage::kDraft:
      return "draft";
    case TrainStage::kReuse:
      return "reuse";
  }
  return "";
}

DocumentSpec training_spec(int level, TaskRandom& random) {
  const std::size_t longest = std::size_t{64} << level;
  DocumentSpec spec;
  // Half the documents are near the full length, the others between half of it and all of it. So
  // answers begin at every offset in a block and at every position.
  spec.context_length =
      random.below(2) == 0 ? longest - random.below(24) : random.between(longest / 2, longest);
  const std::size_t most = needles_for_context(longest);
  spec.needles = random.between(most / 2, most);
  auto& questions = spec.questions;
  const auto at_task = [&](Task task) -> std::size_t& {
    return questions[static_cast<std::size_t>(task)];
  };
  at_task(Task::kNeedle) = level == 0 ? 4 : 3;
  // Copying is the first task in which attention learns to find a word and to go on after it.
  // Needles are learned next.
  at_task(Task::kCopy) = level == 0 ? 3 : 1;
  if (level > 0) {
    spec.sentences = std::max<std::size_t>(1, most / 8);
    spec.chains = level < 2 ? 1 : 2;
    at_task(Task::kSentence) = 1;
    at_task(Task::kMultiKey) = 2;
    at_task(Task::kChain) = spec.chains;
    at_task(Task::kArithmetic) = 2;
    at_task(Task::kSort) = 2;
  }
  return spec;
}

DocumentSpec drill_spec(TaskRandom& random) {
  DocumentSpec spec;
  spec.context_length = random.between(24, 64);
  spec.needles = 2;
  spec.questions[static_cast<std::size_t>(Task::kNeedle)] = 1;
  spec.questions[static_cast<std::size_t>(Task::kCopy)] = 1;
  spec.questions[static_cast<std::size_t>(Task::kArithmetic)] = 9;
  spec.questions[static_cast<std::size_t>(Task::kSort)] = 3;
  // The first operation of a sum is learned long before those that use its result.
  spec.least_terms = 3;
  return spec;
}

Trainer::Trainer(ModelConfig config, TrainOptions options, TaskTokens tokens)
    : config_(std::move(config)),
      options_(std::move(options)),
      tokens_(std::move(tokens)),
      parameters_(expected_tensors(config_), at::Device(options_.device)),
      model_(config_, parameters_.leaves()),
      level_(options_.first_level) {
  if (options_.stage == TrainStage::kDraft) {
    target_.emplace(Checkpoint::open(options_.target), at::Device(options_.device));
  }
}

void Trainer::initialise() {
  const at::Generator generator = at::detail::createCPUGenerator(options_.seed);
  const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(config_.num_layers));
  const WeightNames& names = family_of(config_).weights;
  at::NoGradGuard no_grad;
  for (const auto& [name, weight] : parameters_.leaves()) {
    if (weight.dim() < 2) {
      weight.fill_(1.0);
      continue;
    }
    // Only in a layer: LLaDA's LM head is called ff_out too.
    const bool output = name.ends_with(fmt::format(".{}.weight", names.o)) ||
                        (name.ends_with(fmt::format(".{}{}.weight", names.mlp, names.down)) &&
                         name != names.lm_head);
    weight.copy_(
        at::empty(weight.sizes()).normal_(0.0, output ? 0.02 * residual : 0.02, generator));
  }
}

double scheduled_rate(double peak, std::int64_t step, std::int64_t steps, std::int64_t warmup,
                      double decay_fraction) {
  const auto done = static_cast<double>(step);
  const auto total = static_cast<double>(steps);
  const double warm = std::min(1.0, (done + 1.0) / static_cast<double>(warmup));
  const double left = (total - done) / std::max(1.0, decay_fraction * total);
  return peak * warm * std::clamp(left, 0.02, 1.0);
}

double Trainer::learning_rate() const {
  return scheduled_rate(options_.learning_rate, step_, options_.steps, options_.warmup,
                        options_.decay_fraction);
}

TrainingBatch Trainer::next_batch(StepReport& report) const {
  const bool diffusion = options_.stage == TrainStage::kDiffusion;
  const bool draft = options_.stage == TrainStage::kDraft;
  // Each stage reads its own stream of the training split.
  const std::uint64_t stream =
      draft ? (options_.seed & 0xffff) + (1U << 21)
            : (options_.seed & 0xffff) * 2 + (diffusion ? 1 : 0) + (1U << 20);
  TaskRandom random(TaskSplit::kTrain, stream, static_cast<std::uint64_t>(step_));
  int level = level_;
  const double share = level == options_.last_level ? kLastLevelShare : kClimbingShare;
  const bool drill = level > 0 && random.uniform() < options_.drill_share;
  if (drill) {
    level = 0;
  } else if (level > options_.first_level && random.uniform() >= share) {
    level = static_cast<int>(random.between(static_cast<std::size_t>(options_.first_level),
                                            static_cast<std::size_t>(level_ - 1)));
  }
  report.level = level;
  report.context_length = std::int64_t{64} << level;
  if (draft) return next_draft_batch(report, drill, random);
  if (diffusion && config_.attention_bidirectional) {
    return next_bidirectional_batch(drill, level, random);
  }
  NoiseSpec noise;
  noise.block_length = kBlockLengths[random.below(kBlockLengths.size())];
  // Long contexts get a second noisy copy. A new short context costs less than a second copy.
  noise.copies = level == options_.last_level || level_ < options_.last_level ? 2 : 1;
  report.block_length = diffusion ? noise.block_length : 0;
  // Adds about the rows of a document's questions. A drill has more of them.
  const std::int64_t per_document =
      report.context_length + (diffusion ? 800 : 160) * (drill ? 3 : 2) / 2;
  const std::vector<TaskDocument> documents = next_documents(per_document, drill, level, random);
  return diffusion ? make_diffusion_batch(documents, tokens_, noise, random)
                   : make_backbone_batch(documents, tokens_);
}

std::vector<TaskDocument> Trainer::next_documents(std::int64_t rows_per_document, bool drill,
                                                  int level, TaskRandom& random) const {
  const std::int64_t count =
      std::clamp<std::int64_t>(options_.batch_rows / rows_per_document, 2, 16);
  std::vector<TaskDocument> documents;
  for (std::int64_t i = 0; i < count; ++i) {
    documents.push_back(
        make_document(drill ? drill_spec(random) : training_spec(level, random), random));
  }
  return documents;
}

TrainingBatch Trainer::next_draft_batch(StepReport& report, bool drill, TaskRandom& random) const {
  DraftBatchSpec spec;
  const auto longest = static_cast<std::size_t>(config_.draft->block_size);
  // Trains shorter blocks too, because --block-length may shorten them in decoding.
  spec.block_length = static_cast<std::int64_t>(
      random.below(2) == 0 ? longest : random.between(std::min<std::size_t>(4, longest), longest));
  report.block_length = spec.block_length;
  constexpr std::int64_t kQuestions = 12;  // approximate number in a document
  return make_draft_batch(
      next_documents(report.context_length + kQuestions * spec.anchors * spec.block_length, drill,
                     report.level, random),
      tokens_, spec, random);
}

TrainingBatch Trainer::next_bidirectional_batch(bool drill, int level, TaskRandom& random) const {
  // Decoding has one question per context. Several questions use a long context several times.
  const bool single = random.uniform() < kSingleShare;
  const std::size_t questions = single ? 1 : random.between(2, 12);
  const std::int64_t per_document =
      (std::int64_t{64} << level) + 30 * static_cast<std::int64_t>(questions);
  const std::vector<TaskDocument> documents = next_documents(per_document, drill, level, random);
  return make_bidirectional_batch(documents, tokens_, questions, random);
}

at::Tensor Trainer::forward(const TrainingBatch& batch) const {
  const at::Device device(options_.device);
  const at::ScalarType attention = options_.bfloat16 ? at::kBFloat16 : at::kFloat;
  if (target_) return target_->forward(DraftModel(model_), batch, attention);
  MaskedAttention seams(batch.mask.to(device), batch.chunks, attention);
  const at::Tensor hidden =
      model_.forward(batch.tokens.to(device), batch.positions.to(device), seams);
  return model_.logits(hidden.flatten(0, 1).index_select(0, batch.rows.to(device)));
}

StepReport Trainer::step() {
  StepReport report;
  report.step = step_;
  report.learning_rate = learning_rate();
  const TrainingBatch batch = next_batch(report);
  report.rows = batch.tokens.numel();
  const at::Device device(options_.device);
  at::Tensor losses;
  at::Tensor right;
  {
    const AutocastGuard autocast(options_.bfloat16, device.type());
    const at::Tensor logits = forward(batch).to(at::kFloat);
    const at::Tensor targets = batch.targets.to(device);
    losses = at::cross_entropy_loss(logits, targets, {}, at::Reduction::None);
    right = logits.detach().argmax(-1).eq(targets).cpu();
    const at::Tensor loss = (losses * batch.weights.to(device)).sum();
    report.loss = loss.item<double>();
    at::autocast::set_autocast_enabled(device.type(), false);
    loss.backward();
  }
  report.gradient_norm = parameters_.step(report.learning_rate, options_.adam, step_);
  const at::Tensor each = losses.detach().cpu().contiguous();
  const float* value = each.const_data_ptr<float>();
  const bool* hit = right.const_data_ptr<bool>();
  double sum = 0.0;
  std::int64_t count = 0;
  for (std::size_t m = 0; m < batch.tasks.size(); ++m) {
    if (batch.tasks[m] < 0) continue;
    const auto task = static_cast<std::size_t>(batch.tasks[m]);
    sum += static_cast<double>(value[m]);
    ++count;
    ++report.answer_rows[task];
    report.answer_right[task] += hit[m] ? 1 : 0;
  }
  report.answer_loss = sum / static_cast<double>(std::max<std::int64_t>(count, 1));
  ++step_;
  tokens_seen_ += report.rows;
  if (report.level == level_) {
    recent_.push_back(report.answer_loss);
    if (recent_.size() > kAdvanceBatches) recent_.pop_front();
    const double mean =
        std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(recent_.size());
    if (recent_.size() == kAdvanceBatches && mean < options_.advance_below &&
        level_ < options_.last_level) {
      ++level_;
      recent_.clear();
    }
  }
  return report;
}

}  // namespace blockscope
