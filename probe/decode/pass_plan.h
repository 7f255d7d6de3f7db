// What one forward pass over the blocks of a batch reads: which rows of which blocks, in which
// order. No model, no tensors.
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
/// whose keys the pass stores beside (context.commits).
struct PassPlan {
  PassContext context;
  RowRange rows;  // of the blocks: all, or of the one sequence the sub-block that is filled
  std::vector<int64_t> ids, positions;         // [(S + F) * rows.count]
  std::vector<int64_t> denoising, committing;  // slots whose own entry does so

  int64_t entries() const { return std::ssize(context.sequences) + std::ssize(context.commits); }
};

/// The next pass, number `pass` of the run, of all active sequences; remembers their input.
PassPlan plan_block_pass(std::vector<SequenceState>& active, const DecodeOptions& options,
                         const KvCache& cache, int64_t pass);

}  // namespace blockscope
