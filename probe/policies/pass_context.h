// The description of one forward pass for all parts of the runtime: one entry per active sequence,
// in the order of the batch's slots.
#pragma once

#include <cstdint>
#include <vector>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Named parts of a prompt. Empty: only `first` and `prompt` are told apart (kRegionNames).
struct PromptRegions {
  std::vector<std::string> names;  // all regions of the run: first, prompt, the parts, answer, ...
  std::vector<uint8_t> of_token;   // [prompt], indices into names
};

struct SequencePass {
  int64_t sequence = 0;  // index of the sequence in the run
  PassKind kind = PassKind::denoise;
  int64_t block = 0;  // counted from the sequence's first position; bidirectional: the prompt's end
  int64_t block_start = 0;     // absolute position of the block's first token; prefill: the pass's
  int64_t step = 0;            // denoising step inside the block, from 1; 0 for prefill and commit
  int64_t context_length = 0;  // N, external keys
  std::vector<bool> changed_rows;  // [B] positions whose input differs from the previous step's
  int64_t changed = 0;             // M: their number
  int64_t decided = 0;             // M and the positions that the previous step decided as [MASK]
  int64_t since_read = 0;    // sum of `decided` since the block's last pass that read the prefix
                             // (AttentionPolicy::rows_read), that pass's own decisions included
  std::vector<bool> unread;  // [B] positions whose input changed since then; empty for prefill
  float sure_left = 0.0F;  // n-th largest probability of the tokens that the block's previous step
                           // could have decided and did not, where it decided n, or of all that are
                           // left if they are fewer; 0: none, or no previous step
  int64_t masks_left = 0;  // masks in this pass's input
  std::vector<bool> masked;    // [B] which input positions are masks; empty for prefill
  std::vector<bool> computed;  // [B] which positions the pass computes; empty: all of them
  int64_t run_step = 0;        // denoising steps of the sequence so far, this one included
  int64_t planned_steps = 0;   // steps of the sequence if no block ends early: blocks * T
  uint64_t prompt_hash = 0;    // identifies the sequence's random streams
  const std::vector<int64_t>* prompt = nullptr;  // its tokens, valid while the pass runs; nullptr
                                                 // in drafted decoding
  const PromptRegions* regions = nullptr;        // of `prompt`, as long and as often there

  bool first_step() const { return step == 1; }
};

/// A finished block, which the pass of the next block's first step commits (--cache blockd).
struct FusedCommit {
  int64_t slot = 0;   // slot of the sequence; its own entry denoises the next block
  SequencePass pass;  // kind commit, as a separate commit pass would have it
};

struct PassContext {
  int64_t pass = 0;                       // number of the forward pass in the run, from 0
  std::vector<SequencePass> sequences;    // [S]
  std::vector<FusedCommit> commits = {};  // [F] by slot; policies do not see them
};

}  // namespace blockscope
