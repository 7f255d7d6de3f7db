#include "probe/train/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "probe/train/masked_attention.h"

namespace blockscope {
namespace {

using Ids = std::vector<std::int64_t>;

/// Longest answer: 4 keys of 4 words; three blocks of 8 hold it.
constexpr std::size_t kMostAnswerWords = 28;

void evaluate_backbone(const Trainer& trainer, const TaskDocument& document,
                       EvaluationReport& report) {
  const TrainingBatch batch = make_backbone_batch({document}, trainer.tokens());
  const at::Tensor hit = trainer.forward(batch).argmax(-1).cpu().eq(batch.targets);
  std::vector<bool> right(static_cast<std::size_t>(batch.num_questions), true);
  for (std::size_t m = 0; m < batch.questions.size(); ++m) {
    if (batch.questions[m] < 0 || hit.const_data_ptr<bool>()[m]) continue;
    right[static_cast<std::size_t>(batch.questions[m])] = false;
  }
  for (std::size_t g = 0; g < right.size(); ++g) {
    const auto task = static_cast<std::size_t>(document.questions[g].task);
    ++report.asked[task];
    report.right[task] += right[g] ? 1 : 0;
  }
}

/// One question while it is decoded: ids from the context's last whole block on.
struct Decoding {
  Ids ids;
  std::size_t answer_begin = 0;
  std::size_t block_begin = 0;
  bool done = false;
};

/// One denoising step of every open question: fills each one's most confident masked position.
void denoise(const Trainer& trainer, const Ids& context, std::vector<Decoding>& open,
             std::size_t block) {
  const TaskTokens& tokens = trainer.tokens();
  BatchLayout layout(static_cast<std::int64_t>(block));
  layout.begin_document();
  layout.add(context, 0, -1, 0);
  struct Masked {
    std::size_t question, at;
  };
  std::vector<Masked> masked;
  for (std::size_t g = 0; g < open.size(); ++g) {
    const Decoding& decoding = open[g];
    if (decoding.done) continue;
    const auto begin = decoding.ids.begin() + static_cast<std::ptrdiff_t>(decoding.block_begin);
    const Ids before(decoding.ids.begin(), begin);
    const Ids current(begin, begin + static_cast<std::ptrdiff_t>(block));
    const auto position = static_cast<std::int64_t>(context.size());
    layout.add(before, position, static_cast<int>(g), 0);
    const std::int64_t first =
        layout.add(current, position + static_cast<std::int64_t>(decoding.block_begin),
                   static_cast<int>(g), 1);
    for (std::size_t i = 0; i < block; ++i) {
      if (current[i] != tokens.mask) continue;
      layout.add_loss(first + static_cast<std::int64_t>(i), tokens.mask, -1, -1);
      masked.push_back({g, decoding.block_begin + i});
    }
  }
  const at::Tensor logits = trainer.forward(layout.finish(tokens.end)).to(at::kFloat).cpu();
  logits.select(1, tokens.mask).fill_(-1e30);
  const auto [confidence, token] = logits.softmax(-1).max(-1);
  std::vector<std::int64_t> best(open.size(), -1);
  for (std::size_t m = 0; m < masked.size(); ++m) {
    std::int64_t& chosen = best[masked[m].question];
    const float* value = confidence.const_data_ptr<float>();
    if (chosen < 0 || value[m] > value[chosen]) chosen = static_cast<std::int64_t>(m);
  }
  for (const std::int64_t m : best) {
    if (m < 0) continue;
    const Masked& where = masked[static_cast<std::size_t>(m)];
    open[where.question].ids[where.at] = token.const_data_ptr<std::int64_t>()[m];
  }
}

void evaluate_diffusion(const Trainer& trainer, const TaskDocument& document, std::size_t block,
                        EvaluationReport& report) {
  const TaskTokens& tokens = trainer.tokens();
  Ids context = tokens.encode(document.context);
  const std::size_t whole = context.size() / block * block;
  const Ids left_over(context.begin() + static_cast<std::ptrdiff_t>(whole), context.end());
  context.resize(whole);
  std::vector<Decoding> open;
  for (const TaskQuestion& question : document.questions) {
    Decoding decoding;
    decoding.ids = left_over;
    const Ids asked = tokens.encode(question.question);
    decoding.ids.insert(decoding.ids.end(), asked.begin(), asked.end());
    decoding.answer_begin = decoding.ids.size();
    decoding.block_begin = decoding.answer_begin / block * block;
    decoding.ids.resize(decoding.block_begin + block, tokens.mask);
    open.push_back(std::move(decoding));
  }
  const auto is_open = [](const Decoding& decoding) { return !decoding.done; };
  while (std::any_of(open.begin(), open.end(), is_open)) {
    denoise(trainer, context, open, block);
    for (Decoding& decoding : open) {
      const auto from = decoding.ids.begin() + static_cast<std::ptrdiff_t>(decoding.answer_begin);
      if (decoding.done || std::count(from, decoding.ids.end(), tokens.mask) > 0) continue;
      decoding.done = std::count(from, decoding.ids.end(), tokens.end) > 0 ||
                      decoding.ids.size() - decoding.answer_begin > kMostAnswerWords;
      if (decoding.done) continue;
      decoding.block_begin += block;
      decoding.ids.resize(decoding.block_begin + block, tokens.mask);
    }
  }
  for (std::size_t g = 0; g < open.size(); ++g) {
    const auto from = open[g].ids.begin() + static_cast<std::ptrdiff_t>(open[g].answer_begin);
    const Ids answer(from, std::find(from, open[g].ids.end(), tokens.end));
    const auto task = static_cast<std::size_t>(document.questions[g].task);
    ++report.asked[task];
    report.right[task] += answer == tokens.encode(document.questions[g].answer) ? 1 : 0;
  }
}

}  // namespace

EvaluationReport evaluate(const Trainer& trainer, const EvaluationSpec& spec) {
  const auto start = std::chrono::steady_clock::now();
  const at::NoGradGuard no_grad;
  EvaluationReport report;
  for (std::size_t i = 0; i < spec.documents; ++i) {
    TaskRandom random(TaskSplit::kTest, (spec.seed & 0xffff) + (1U << 20),
                      (i << 12) ^ spec.context_length);
    DocumentSpec document;
    document.context_length = spec.context_length - 24;
    document.needles = needles_for_context(spec.context_length);
    document.sentences = 2;
    document.chains = spec.context_length < 256 ? 1 : 2;
    document.questions = {4, 2, 2, document.chains, 2, 2, 2};
    const TaskDocument written = make_document(document, random);
    if (trainer.options().stage == TrainStage::kBackbone) {
      evaluate_backbone(trainer, written, report);
    } else {
      evaluate_diffusion(trainer, written, static_cast<std::size_t>(spec.block_length), report);
    }
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace blockscope
