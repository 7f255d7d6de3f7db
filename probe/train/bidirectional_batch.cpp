#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "probe/train/training_batch.h"

namespace blockscope {
namespace {

constexpr double kFillWeight = 0.3;  // of the end tokens that fill a length; an answer's words: 1
constexpr std::int64_t kLengthUnit = 8;

/// One document's sequence and the positions to predict.
struct Sequence {
  struct Loss {
    std::int64_t at, target;
    int task, question;  // task -1: fills the length
    double weight;
  };
  TokenIds ids;
  std::vector<Loss> losses;
};

void append(TokenIds& to, const TokenIds& from) { to.insert(to.end(), from.begin(), from.end()); }

/// Appends the answer, filled with end tokens and masked.
void add_answer(Sequence& sequence, const TokenIds& words, int task, int question,
                const TaskTokens& tokens, TaskRandom& random) {
  TokenIds answer = words;
  answer.push_back(tokens.end);
  const auto own = answer.size();  // the words and the first end token
  constexpr auto kUnit = static_cast<std::size_t>(kLengthUnit);
  const std::size_t least = (own + kUnit - 1) / kUnit;
  const std::size_t most = std::max(least, static_cast<std::size_t>(kMostGenerated) / kUnit);
  answer.resize(random.between(least, most) * kUnit, tokens.end);
  const double level = std::min(1.0, random.uniform() * kNoiseReach);
  std::vector<std::size_t> masked;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    if (random.uniform() < level) masked.push_back(i);
  }
  if (masked.empty()) masked.push_back(random.below(answer.size()));
  const auto words_masked = static_cast<std::size_t>(
      std::count_if(masked.begin(), masked.end(), [&](std::size_t i) { return i < own; }));
  const auto begin = static_cast<std::int64_t>(sequence.ids.size());
  append(sequence.ids, answer);
  for (const std::size_t i : masked) {
    const bool word = i < own;
    const std::size_t alike = word ? words_masked : masked.size() - words_masked;
    const auto at = begin + static_cast<std::int64_t>(i);
    sequence.losses.push_back({at, answer[i], word ? task : -1, word ? question : -1,
                               (word ? 1.0 : kFillWeight) / static_cast<double>(alike)});
    sequence.ids[static_cast<std::size_t>(at)] = tokens.mask;
  }
}

}  // namespace

TrainingBatch bidirectional_rows(const std::vector<TokenIds>& sequences, std::int64_t fill_token) {
  const auto batch = static_cast<std::int64_t>(sequences.size());
  std::size_t longest = 0;
  for (const TokenIds& ids : sequences) longest = std::max(longest, ids.size());
  const auto length = static_cast<std::int64_t>(longest);
  TrainingBatch out;
  out.tokens = at::full({batch, length}, fill_token, at::kLong);
  out.positions = at::arange(length, at::kLong).expand({batch, length}).contiguous();
  out.mask = at::zeros({batch, 1, length, length});
  out.chunks = {{0, length, length, 0, 0}};
  for (std::int64_t s = 0; s < batch; ++s) {
    const TokenIds& ids = sequences[static_cast<std::size_t>(s)];
    const auto count = static_cast<std::int64_t>(ids.size());
    std::copy(ids.begin(), ids.end(), out.tokens.mutable_data_ptr<std::int64_t>() + s * length);
    // No other row sees the padding, so it does not matter what the padding sees.
    out.mask[s].narrow(2, count, length - count).fill_(-std::numeric_limits<float>::infinity());
  }
  return out;
}

TrainingBatch make_bidirectional_batch(const std::vector<TaskDocument>& documents,
                                       const TaskTokens& tokens, std::size_t questions,
                                       TaskRandom& random) {
  std::vector<Sequence> sequences;
  int running = 0;
  for (const TaskDocument& document : documents) {
    Sequence sequence;
    sequence.ids = tokens.encode(document.context);
    for (std::size_t g = 0; g < std::min(questions, document.questions.size()); ++g) {
      const TaskQuestion& question = document.questions[g];
      append(sequence.ids, tokens.encode(question.question));
      add_answer(sequence, tokens.encode(question.answer), static_cast<int>(question.task), running,
                 tokens, random);
      ++running;
    }
    sequences.push_back(std::move(sequence));
  }
  std::vector<TokenIds> ids;
  for (const Sequence& sequence : sequences) ids.push_back(sequence.ids);
  TrainingBatch out = bidirectional_rows(ids, tokens.end);
  TokenIds rows;
  TokenIds targets;
  std::vector<float> weights;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (const Sequence::Loss& loss : sequences[s].losses) {
      rows.push_back(static_cast<std::int64_t>(s) * out.tokens.size(1) + loss.at);
      targets.push_back(loss.target);
      weights.push_back(static_cast<float>(loss.weight / std::max(running, 1)));
      out.tasks.push_back(loss.task);
      out.questions.push_back(loss.question);
    }
  }
  out.rows = at::tensor(rows, at::kLong);
  out.targets = at::tensor(targets, at::kLong);
  out.weights = at::tensor(weights, at::kFloat);
  out.num_questions = running;
  return out;
}

}  // namespace blockscope
