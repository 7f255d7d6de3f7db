#include "probe/train/draft_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

namespace blockscope {
namespace {

constexpr std::int64_t kChunkRows = 96;  // about this many rows per attention call

/// A block of a draft. `anchor` is a row of the target in a document. The block may see the
/// context's rows [0, context) and its question's rows [question, anchor).
struct Block {
  std::int64_t context, question, anchor;
  std::int64_t position;  // of the anchor
  TokenIds targets;       // of the masks, up to the end token
  std::int64_t certain;   // the anchor's token
  int task, number;       // of the question
};

std::vector<std::size_t> anchors_of(std::size_t answer, std::int64_t most, TaskRandom& random) {
  std::vector<std::size_t> others;
  for (std::size_t i = 1; i < answer; ++i) others.push_back(i);
  std::vector<std::size_t> anchors{0};
  while (!others.empty() && (most == 0 || std::ssize(anchors) < most)) {
    const std::size_t chosen = most == 0 ? 0 : random.below(others.size());
    anchors.push_back(others[chosen]);
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  std::sort(anchors.begin(), anchors.end());
  return anchors;
}

/// Adds a document's rows to the target's layout and returns the blocks on it.
std::vector<Block> add_document(BatchLayout& layout, const TaskDocument& document,
                                const TaskTokens& tokens, const DraftBatchSpec& spec,
                                TaskRandom& random, int& running) {
  std::vector<Block> blocks;
  layout.begin_document();
  const TokenIds context = tokens.encode(document.context);
  const std::int64_t length = std::ssize(context);
  layout.add(context, 0, -1, 0);
  for (std::size_t g = 0; g < document.questions.size(); ++g, ++running) {
    const TaskQuestion& question = document.questions[g];
    TokenIds ids = tokens.encode(question.question);
    const std::size_t begin = ids.size();
    const TokenIds answer = tokens.encode(question.answer);
    ids.insert(ids.end(), answer.begin(), answer.end());
    ids.push_back(tokens.end);
    // No block reads the end token's hidden state, but keeping it costs nothing.
    const std::int64_t first = layout.add(ids, length, static_cast<int>(g), 0);
    for (const std::size_t anchor : anchors_of(answer.size(), spec.anchors, random)) {
      const std::size_t at = begin + anchor;
      const std::size_t end =
          std::min(at + static_cast<std::size_t>(spec.block_length), ids.size());
      const auto offset = static_cast<std::int64_t>(at);
      blocks.push_back(
          {length, first, first + offset, length + offset,
           TokenIds(ids.begin() + offset + 1, ids.begin() + static_cast<std::ptrdiff_t>(end)),
           ids[at], static_cast<int>(question.task), running});
    }
  }
  return blocks;
}

/// Chunks of whole blocks over `rows`. Each sees all columns before `shared` and its own rows.
std::vector<RowChunk> chunks_of(std::int64_t rows, std::int64_t block, std::int64_t shared) {
  const std::int64_t size = std::max<std::int64_t>(kChunkRows / block, 1) * block;
  std::vector<RowChunk> chunks;
  for (std::int64_t begin = 0; begin < rows; begin += size) {
    const std::int64_t end = std::min(begin + size, rows);
    chunks.push_back({begin, end, shared, shared + begin, shared + end});
  }
  return chunks;
}

}  // namespace

double draft_loss_gamma(std::int64_t block_length) {
  return std::max(1.0, 4.0 + 0.375 * static_cast<double>(block_length - 8));
}

TrainingBatch make_draft_batch(const std::vector<TaskDocument>& documents, const TaskTokens& tokens,
                               const DraftBatchSpec& spec, TaskRandom& random) {
  BatchLayout layout(0);
  std::vector<std::vector<Block>> blocks;
  int running = 0;
  std::size_t most = 0;
  for (const TaskDocument& document : documents) {
    blocks.push_back(add_document(layout, document, tokens, spec, random, running));
    most = std::max(most, blocks.back().size());
  }
  const auto context = std::make_shared<TrainingBatch>(layout.finish(tokens.end));
  const std::int64_t size = spec.block_length;
  const std::int64_t columns = context->tokens.size(1);
  const std::int64_t rows = static_cast<std::int64_t>(most) * size;
  const std::int64_t batch = std::ssize(documents);
  TrainingBatch out;
  out.context = context;
  out.num_questions = running;
  out.tokens = at::full({batch, rows}, tokens.mask, at::kLong);
  out.positions = at::zeros({batch, rows}, at::kLong);
  out.mask = at::full({batch, 1, rows, columns + rows}, -std::numeric_limits<float>::infinity());
  out.chunks = chunks_of(rows, size, columns);
  TokenIds loss_rows;
  TokenIds targets;
  std::vector<float> weights;
  double sum = 0.0;
  for (std::int64_t s = 0; s < batch; ++s) {
    const std::vector<Block>& own = blocks[static_cast<std::size_t>(s)];
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(most); ++b) {
      const std::int64_t row = b * size;
      // Padding sees itself, because a softmax over nothing would be NaN.
      const at::Tensor lines = out.mask[s][0].narrow(0, row, size);
      lines.narrow(1, columns + row, size).zero_();
      if (b >= std::ssize(own)) continue;
      const Block& block = own[static_cast<std::size_t>(b)];
      lines.narrow(1, 0, block.context).zero_();
      lines.narrow(1, block.question, block.anchor - block.question).zero_();
      out.tokens[s][row] = block.certain;
      out.positions[s]
          .narrow(0, row, size)
          .copy_(at::arange(block.position, block.position + size, at::kLong));
      for (std::size_t k = 0; k < block.targets.size(); ++k) {
        loss_rows.push_back(s * rows + row + static_cast<std::int64_t>(k) + 1);
        targets.push_back(block.targets[k]);
        const double weight = std::exp(-static_cast<double>(k) / draft_loss_gamma(size));
        weights.push_back(static_cast<float>(weight));
        sum += weight;
        out.tasks.push_back(block.task);
        out.questions.push_back(block.number);
      }
    }
  }
  out.rows = at::tensor(loss_rows, at::kLong);
  out.targets = at::tensor(targets, at::kLong);
  out.weights = at::tensor(weights, at::kFloat).div_(std::max(sum, 1e-6));
  return out;
}

}  // namespace blockscope
