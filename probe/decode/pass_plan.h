// The input of one forward pass over the blocks of a batch: which rows of which blocks, in which
// order. It needs no model and no tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/sequence_state.h"
#include "probe/decode/sub_blocks.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// The entries of the pass: [S] blocks of the active sequences, by slot, then [F] finished blocks
/// whose keys the same pass stores (context.commits).
struct PassPlan {
  PassContext context;
  RowRange rows;  // of the blocks: all, or the sub-block that the one sequence is filling
  std::vector<int64_t> ids, positions;         // [(S + F) * rows.count]
  std::vector<int64_t> denoising, committing;  // slots by the kind of their own entry

  int64_t entries() const { return std::ssize(context.sequences) + std::ssize(context.commits); }
};

/// The next pass of all active sequences, number `pass` of the run. Remembers their input.
PassPlan plan_block_pass(std::vector<SequenceState>& active, const DecodeOptions& options,
                         const KvCache& cache, int64_t pass);

}  // namespace blockscope
