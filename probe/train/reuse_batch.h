// Batches for reuse-aware distillation (stage reuse; FlashBlock, arXiv 2602.05305, section 4.3;
// released: dllm/generatev2.py:multi_block_probe_teacher_student). A document's true tokens are
// computed once, block-causal. Probe blocks stand at some of its blocks. All of them form one
// query. Each probe sees the true tokens before its block, and itself.
//
// A text has probes at any block after its first. A document of the task generator has them at the
// blocks of its answers, where the question's last tokens are known, and at two blocks of its
// context.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/train/training_batch.h"

namespace blockscope {

struct ReuseBatchSpec {
  std::int64_t block_length = 0;  // B; 0 in options: the base's
  std::int64_t probes = 64;       // most probe blocks of a document
  bool random = true;             // which blocks are probed; false: evenly spaced ones
};

/// S documents, P probe blocks of B rows, C columns of true tokens.
struct ReuseBatch {
  TrainingBatch prefix;          // the true tokens [S, C], block-causal, without loss rows
  at::Tensor tokens;             // int64 [S, P * B]: known tokens and masks; padding has no mask
  at::Tensor positions;          // int64 [S, P * B]
  at::Tensor mask;               // float32 [S, 1, P * B, C]: 0 where a probe may see, else -inf
  std::vector<RowChunk> chunks;  // whole probes, and the columns [0, shared) that they see
  std::int64_t block_length = 0;
};

/// Tokens that the batch itself needs.
struct ReuseTokens {
  std::int64_t mask = 0;
  std::int64_t fill = 0;  // pads shorter documents
};

/// `texts`: token ids, at least 2 * B each.
ReuseBatch make_reuse_batch(const std::vector<TokenIds>& texts, const ReuseTokens& tokens,
                            const ReuseBatchSpec& spec, TaskRandom& random);
/// Every document needs a context of at least B tokens and a question.
ReuseBatch make_reuse_batch(const std::vector<TaskDocument>& documents, const TaskTokens& tokens,
                            const ReuseBatchSpec& spec, TaskRandom& random);

}  // namespace blockscope
