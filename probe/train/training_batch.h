// Batches for both objectives, as token rows with one attention mask. A document is its context and
// its questions; every question is a group that continues right after the context and sees nothing
// of the other groups, so one pass over a context serves all its questions exactly as single
// prompts.
//
// AR (stage backbone): causal. SDAR (stage diffusion; MAGE eq. 4, SDAR's [noisy; clean] training):
// noisy copies of a block see their own copy of the block (bidirectional) and the clean blocks
// before it; clean tokens are block-causal; clean and noisy copies carry the same positions. Blocks
// that take no part in the loss have no noisy copy, which leaves out terms of eq. 4 and changes
// none.
//
// DFlash (stage draft): draft_batch.h.
//
// LLaDA (stage diffusion of the family llada; arXiv 2502.09992, SFT): everything sees everything.
// The questions of a document stand one after another behind its context, all of them visible, and
// the answers are masked.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "probe/tasks/task_generator.h"

namespace blockscope {

using TokenIds = std::vector<std::int64_t>;

/// Noise levels are drawn up to here and cut at 1: a sixth of the answers are all masks, as
/// decoding begins.
inline constexpr double kNoiseReach = 1.2;

/// Token ids of the task words and of the special tokens.
struct TaskTokens {
  std::vector<std::int64_t> ids;  // by TaskWord
  std::int64_t end = 0;           // <|endoftext|>: ends an answer and fills its last block
  std::int64_t mask = 0;          // <|MASK|>

  std::vector<std::int64_t> encode(const std::vector<TaskWord>& words) const;
};

/// From the vocabulary of a tokenizer.json. Throws CheckpointError when a word is no single token.
TaskTokens load_task_tokens(const std::string& tokenizer_json_path);

/// Rows [begin, end) of every document see at most the columns [0, shared) and [own_begin,
/// own_end).
struct RowChunk {
  std::int64_t begin = 0, end = 0, shared = 0, own_begin = 0, own_end = 0;
};

/// S documents padded to T rows; M rows take part in the loss.
struct TrainingBatch {
  at::Tensor tokens;             // int64 [S, T]
  at::Tensor positions;          // int64 [S, T]
  at::Tensor mask;               // float32 [S, 1, T, T]: 0 where row may see column, else -inf
  at::Tensor rows;               // int64 [M], index into the flattened [S * T]
  at::Tensor targets;            // int64 [M]
  at::Tensor weights;            // float32 [M]: 0.3 / all + (answer ? 1 / answers : 0)
  std::vector<int> tasks;        // [M], Task of an answer row, -1 elsewhere
  std::vector<int> questions;    // [M], running number of the question, -1 elsewhere
  std::vector<RowChunk> chunks;  // cover all rows; what attention needs to look at
  std::int64_t num_questions = 0;
  // Of a draft: the rows of its target, without rows for the loss. They are the first columns of
  // `mask` and of the chunks.
  std::shared_ptr<const TrainingBatch> context{};
};

/// Collects rows and writes the tensors; the mask rules above live here.
class BatchLayout {
 public:
  explicit BatchLayout(std::int64_t block_length) : block_length_(block_length) {}

  void begin_document();
  /// `copy` 0 is clean, > 0 a noisy copy; `group` -1 is the context. Returns the first row's index
  /// in the document.
  std::int64_t add(const std::vector<std::int64_t>& tokens, std::int64_t first_position, int group,
                   int copy);
  void add_loss(std::int64_t row, std::int64_t target, int task, int question);
  /// `block_length` 0 in the constructor: causal.
  TrainingBatch finish(std::int64_t fill_token) const;

 private:
  struct Row {
    std::int64_t token, position;
    int group, copy;
  };
  struct Loss {
    std::size_t document;
    std::int64_t row, target;
    int task, question;
  };
  bool sees(const Row& query, const Row& key) const;
  std::vector<RowChunk> chunks(std::int64_t length) const;

  std::int64_t block_length_;
  std::vector<std::vector<Row>> documents_;
  std::vector<Loss> losses_;
};

/// Sequences of clean and masked tokens in which every position sees all others of its sequence;
/// without rows for the loss.
TrainingBatch bidirectional_rows(const std::vector<std::vector<std::int64_t>>& sequences,
                                 std::int64_t fill_token);

TrainingBatch make_backbone_batch(const std::vector<TaskDocument>& documents,
                                  const TaskTokens& tokens);

struct NoiseSpec {
  std::int64_t block_length = 32;
  int copies = 2;          // noisy copies of every answer block, each with its own noise level
  int context_blocks = 2;  // noisy blocks of the context per document (plain text denoising)
};
TrainingBatch make_diffusion_batch(const std::vector<TaskDocument>& documents,
                                   const TaskTokens& tokens, const NoiseSpec& noise,
                                   TaskRandom& random);

/// The longest answer with its end token fits: 4 keys of 4 words, or 3 operations.
inline constexpr std::int64_t kMostGenerated = 32;

/// The first `questions` of every document. An answer is followed by end tokens up to a length of
/// 8, 16, 24 or 32, drawn, as decoding fills a given length; each is masked at its own level
/// min(1, 1.2 U). An answer's masked words, with the first end token, weigh 1 together whatever
/// their number (LLaDA's 1 / t by count), its other masked end tokens 0.3.
TrainingBatch make_bidirectional_batch(const std::vector<TaskDocument>& documents,
                                       const TaskTokens& tokens, std::size_t questions,
                                       TaskRandom& random);

}  // namespace blockscope
