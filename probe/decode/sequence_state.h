// Where one sequence of a batch of blocks, or a canvas, stands, and what follows from that alone:
// its next pass, what a pass changed, why it ended. No model, no tensors.
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
  int64_t prompt_length = 0;
  int64_t block = 0;
  int64_t step = 0;           // denoising steps done in this block
  bool block_cached = false;  // a pass over the whole block left its keys in the block cache
  std::optional<SequencePass> uncommitted;  // the block before, which the next pass commits beside
  size_t replay_cursor = 0;
  ChoiceMemory memory;

  std::vector<int64_t> generated() const { return {tokens.begin() + prompt_length, tokens.end()}; }
};

SequenceState initial_state(const DecodeRequest& request, const DecodeOptions& options);

/// Whole prompt blocks; autoregressive: all but the last prompt token, which is the first input;
/// bidirectional: nothing.
int64_t prefill_length(const SequenceState& state, const DecodeOptions& options);

/// The next pass over the sequence's block; remembers its input.
SequencePass plan_pass(SequenceState& state, const DecodeOptions& options, int64_t context_length);

/// What that pass, a denoising one, is decided from.
StepInput step_input(SequenceState& state, const SequencePass& pass, const DecodeOptions& options);

/// After that pass: takes its tokens, goes on to the next block, says why the sequence ended.
void advance(SequenceState& state, const SequencePass& pass, const StepDecision& decision,
             const DecodeOptions& options);

/// After the prefill, or a commit: the token that the block now begins with (sub-blocks only).
void take_first_token(SequenceState& state, const StepDecision& decision,
                      const DecodeOptions& options);

/// What a replay says that the block behind the committed one begins with.
std::optional<NextToken> replayed_first_token(const SequenceState& state, int64_t block);

}  // namespace blockscope
