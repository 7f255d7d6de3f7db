// The state of one sequence of a batch, or of a canvas, and what follows from the state alone: its
// next pass, what a pass changed, why the sequence ended. It needs no model and no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/decode/step_decision.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

struct SequenceState {
  const DecodeRequest* request = nullptr;
  DecodeOutcome outcome;
  std::vector<int64_t> tokens;      // [total positions]
  std::vector<int64_t> last_input;  // [B] input of the block's previous step
  int64_t kept_masks = 0;           // positions that the previous step decided as [MASK]
  int64_t since_read = 0;           // SequencePass::since_read of the block's previous step
  std::vector<bool> unread;         // [B] SequencePass::unread of it; empty: it read the prefix
  float sure_left = 0.0F;           // StepDecision::sure_left of the block's previous step
  int64_t prompt_length = 0;
  int64_t block = 0;
  int64_t step = 0;           // denoising steps done in this block
  bool block_cached = false;  // a pass over the whole block has filled the block cache
  std::optional<SequencePass> uncommitted;  // the block before, which the next pass also commits
  size_t replay_cursor = 0;
  ChoiceMemory memory;
  std::vector<bool> noise;  // [B] undecided positions of a canvas
  bool settled = false;     // the canvas is finished

  std::vector<int64_t> generated() const { return {tokens.begin() + prompt_length, tokens.end()}; }
};

SequenceState initial_state(const DecodeRequest& request, const DecodeOptions& options);

/// The number of positions to prefill: the prompt's whole blocks. Autoregressive: all but the last
/// prompt token, which is the first input. Bidirectional: none. Canvas: the prompt.
int64_t prefill_length(const SequenceState& state, const DecodeOptions& options);

/// The next pass over the sequence's block. Remembers its input.
SequencePass plan_pass(SequenceState& state, const DecodeOptions& options, int64_t context_length);

/// Remembers that the pass read the prefix for `rows` rows of the block (AttentionPolicy).
void take_reads(SequenceState& state, int64_t rows);

/// The input from which the decision of a denoising pass is made.
StepInput step_input(SequenceState& state, const SequencePass& pass, const DecodeOptions& options);

/// After a pass: takes its tokens, moves on to the next block, and sets the reason if the sequence
/// has ended.
void advance(SequenceState& state, const SequencePass& pass, const StepDecision& decision,
             const DecodeOptions& options);

/// After the prefill or a commit: sets the first token of the block (only with sub-blocks).
void take_first_token(SequenceState& state, const StepDecision& decision,
                      const DecodeOptions& options);

/// Begins the sequence's next canvas with random tokens: those of a replay, else drawn ones.
std::vector<Noise> begin_canvas(SequenceState& state, const DecodeOptions& options,
                                int64_t vocab_size);

/// The recorded first token of block `block`, in a replay; none: not recorded.
std::optional<NextToken> replayed_first_token(const SequenceState& state, int64_t block);

}  // namespace blockscope
