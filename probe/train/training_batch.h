// Batches for all objectives, as token rows with one attention mask. A document is a context and
// its questions. Every question is a group: it continues right after the context and does not see
// the other groups. So one pass over a context computes all its questions exactly like single
// prompts.
//
// AR (stage backbone): causal. SDAR (stage diffusion; MAGE eq. 4, SDAR's [noisy; clean] training):
// a noisy copy of a block sees itself (bidirectional) and the clean blocks before it. Clean tokens
// are block-causal. Clean and noisy copies have the same positions. Blocks without loss have no
// noisy copy; this leaves out terms of eq. 4 and changes none.
//
// DFlash (stage draft): draft_batch.h.
//
// LLaDA (stage diffusion of the family llada; arXiv 2502.09992, SFT): every position sees all
// others. The questions of a document follow its context one after another, all of them visible.
// The answers are masked.
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

/// Noise levels are drawn from 0 to this value and cut at 1. So a sixth of the answers are all
/// masks, as at the start of decoding.
inline constexpr double kNoiseReach = 1.2;

/// Token ids of the task words and of the special tokens.
struct TaskTokens {
  std::vector<std::int64_t> ids;  // by TaskWord
  std::int64_t end = 0;           // <|endoftext|>: ends an answer and fills its last block
  std::int64_t mask = 0;          // <|MASK|>

  std::vector<std::int64_t> encode(const std::vector<TaskWord>& words) const;
};

/// Reads the ids from the vocabulary of a tokenizer.json. Throws CheckpointError if a word is not a
/// single token.
TaskTokens load_task_tokens(const std::string& tokenizer_json_path);

/// In every document, the rows [begin, end) see at most the columns [0, shared) and [own_begin,
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
  std::vector<RowChunk> chunks;  // cover all rows; the columns that attention must read
  std::int64_t num_questions = 0;
  // For a draft: the target's rows, without loss rows. They are the first columns of `mask` and of
  // the chunks.
  std::shared_ptr<const TrainingBatch> context{};
};

/// Collects rows and makes the tensors. Implements the mask rules above.
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

/// Sequences of clean and masked tokens, without loss rows. Every position sees all others of its
/// sequence.
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

/// Uses the first `questions` questions of every document. End tokens follow each answer up to a
/// drawn length of 8, 16, 24 or 32, because decoding fills a given length too. Each answer is
/// masked at its own level min(1, 1.2 U). The masked words and first end token of an answer weigh 1
/// together, whatever their number (LLaDA's 1 / t by count). Its other masked end tokens weigh 0.3.
TrainingBatch make_bidirectional_batch(const std::vector<TaskDocument>& documents,
                                       const TaskTokens& tokens, std::size_t questions,
                                       TaskRandom& random);

}  // namespace blockscope
