#include "probe/train/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "probe/train/draft_batch.h"
#include "probe/train/masked_attention.h"

namespace blockscope {
namespace {

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

/// A question during decoding. `ids` begins after the context's last whole block, or at the
/// context's beginning (bidirectional).
struct Decoding {
  TokenIds ids;
  std::size_t answer_begin = 0;
  std::size_t block_begin = 0;
  bool done = false;
};

/// The question and position of a row of logits.
struct Masked {
  std::size_t question, at;
};

/// Fills each question's most confident masked position; logits [M, vocab] of `masked` [M].
void fill_best(const at::Tensor& logits, const std::vector<Masked>& masked, std::int64_t mask_token,
               std::vector<Decoding>& open) {
  logits.select(1, mask_token).fill_(-1e30);
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

/// One denoising step of every open question: fills each one's most confident masked position.
void denoise(const Trainer& trainer, const TokenIds& context, std::vector<Decoding>& open,
             std::size_t block) {
  const TaskTokens& tokens = trainer.tokens();
  BatchLayout layout(static_cast<std::int64_t>(block));
  layout.begin_document();
  layout.add(context, 0, -1, 0);
  std::vector<Masked> masked;
  for (std::size_t g = 0; g < open.size(); ++g) {
    const Decoding& decoding = open[g];
    if (decoding.done) continue;
    const auto begin = decoding.ids.begin() + static_cast<std::ptrdiff_t>(decoding.block_begin);
    const TokenIds before(decoding.ids.begin(), begin);
    const TokenIds current(begin, begin + static_cast<std::ptrdiff_t>(block));
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
  fill_best(logits, masked, tokens.mask, open);
}

/// The same step for LLaDA. Every question is a sequence of its own, which is recomputed as a whole
/// with the masks of later blocks.
void denoise_bidirectional(const Trainer& trainer, std::vector<Decoding>& open, std::size_t block) {
  const TaskTokens& tokens = trainer.tokens();
  std::vector<TokenIds> sequences;
  std::vector<Masked> masked;
  std::vector<std::size_t> sequence_of;
  for (std::size_t g = 0; g < open.size(); ++g) {
    if (open[g].done) continue;
    for (std::size_t i = open[g].block_begin; i < open[g].block_begin + block; ++i) {
      if (open[g].ids[i] != tokens.mask) continue;
      masked.push_back({g, i});
      sequence_of.push_back(sequences.size());
    }
    sequences.push_back(open[g].ids);
  }
  TrainingBatch batch = bidirectional_rows(sequences, tokens.end);
  TokenIds rows;
  for (std::size_t m = 0; m < masked.size(); ++m) {
    rows.push_back(static_cast<std::int64_t>(sequence_of[m]) * batch.tokens.size(1) +
                   static_cast<std::int64_t>(masked[m].at));
  }
  batch.rows = at::tensor(rows, at::kLong);
  fill_best(trainer.forward(batch).to(at::kFloat).cpu(), masked, tokens.mask, open);
}

bool any_open(const std::vector<Decoding>& open) {
  return std::ranges::any_of(open, [](const Decoding& decoding) { return !decoding.done; });
}

/// Counts the answers that are right from the first word to the end token.
void score(const TaskTokens& tokens, const std::vector<Decoding>& decoded,
           const TaskDocument& document, EvaluationReport& report) {
  for (std::size_t g = 0; g < decoded.size(); ++g) {
    const TokenIds& ids = decoded[g].ids;
    const auto from = ids.begin() + static_cast<std::ptrdiff_t>(decoded[g].answer_begin);
    const TokenIds answer(from, std::find(from, ids.end(), tokens.end));
    const auto task = static_cast<std::size_t>(document.questions[g].task);
    ++report.asked[task];
    report.right[task] += answer == tokens.encode(document.questions[g].answer) ? 1 : 0;
  }
}

void evaluate_bidirectional(const Trainer& trainer, const TaskDocument& document, std::size_t block,
                            EvaluationReport& report) {
  const TaskTokens& tokens = trainer.tokens();
  std::vector<Decoding> open;
  for (const TaskQuestion& question : document.questions) {
    Decoding decoding;
    decoding.ids = tokens.encode(document.context);
    const TokenIds asked = tokens.encode(question.question);
    decoding.ids.insert(decoding.ids.end(), asked.begin(), asked.end());
    decoding.answer_begin = decoding.block_begin = decoding.ids.size();
    decoding.ids.resize(decoding.ids.size() + kMostGenerated, tokens.mask);
    open.push_back(std::move(decoding));
  }
  while (any_open(open)) {
    denoise_bidirectional(trainer, open, block);
    for (Decoding& decoding : open) {
      const auto from = decoding.ids.begin() + static_cast<std::ptrdiff_t>(decoding.block_begin);
      const auto to = from + static_cast<std::ptrdiff_t>(block);
      if (decoding.done || std::find(from, to, tokens.mask) != to) continue;
      decoding.done = std::find(from, to, tokens.end) != to || to == decoding.ids.end();
      if (!decoding.done) decoding.block_begin += block;
    }
  }
  score(tokens, open, document, report);
}

void evaluate_diffusion(const Trainer& trainer, const TaskDocument& document, std::size_t block,
                        EvaluationReport& report) {
  const TaskTokens& tokens = trainer.tokens();
  TokenIds context = tokens.encode(document.context);
  const std::size_t whole = context.size() / block * block;
  const TokenIds left_over(context.begin() + static_cast<std::ptrdiff_t>(whole), context.end());
  context.resize(whole);
  std::vector<Decoding> open;
  for (const TaskQuestion& question : document.questions) {
    Decoding decoding;
    decoding.ids = left_over;
    const TokenIds asked = tokens.encode(question.question);
    decoding.ids.insert(decoding.ids.end(), asked.begin(), asked.end());
    decoding.answer_begin = decoding.ids.size();
    decoding.block_begin = decoding.answer_begin / block * block;
    decoding.ids.resize(decoding.block_begin + block, tokens.mask);
    open.push_back(std::move(decoding));
  }
  while (any_open(open)) {
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
  score(tokens, open, document, report);
}

void evaluate_draft(const Trainer& trainer, const TaskDocument& document, std::int64_t block,
                    EvaluationReport& report) {
  TaskRandom unused(TaskSplit::kTest, 0, 0);  // every token of an answer is an anchor
  const TrainingBatch batch = make_draft_batch({document}, trainer.tokens(), {block, 0}, unused);
  const at::Tensor hits = trainer.forward(batch).argmax(-1).cpu().eq(batch.targets);
  const bool* hit = hits.const_data_ptr<bool>();
  for (const TaskQuestion& question : document.questions) {
    const auto task = static_cast<std::size_t>(question.task);
    const std::int64_t length = std::ssize(question.answer);
    report.tokens[task] += length;  // with the end token, without the first one
    std::int64_t next = 0;          // anchor of the next round
    for (std::int64_t anchor = 0; anchor < length; ++anchor) {
      const std::int64_t rows = std::min(block - 1, length - anchor);
      if (anchor == next) {
        ++report.rounds[task];
        next += 1 + (std::find(hit, hit + rows, false) - hit);
      }
      hit += rows;
    }
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
    } else if (trainer.options().stage == TrainStage::kDraft) {
      evaluate_draft(trainer, written, spec.block_length, report);
    } else if (trainer.model().config().attention_bidirectional) {
      evaluate_bidirectional(trainer, written, static_cast<std::size_t>(spec.block_length), report);
    } else {
      evaluate_diffusion(trainer, written, static_cast<std::size_t>(spec.block_length), report);
    }
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace blockscope
