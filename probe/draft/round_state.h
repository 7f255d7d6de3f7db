// One sequence of a drafted run: its decided tokens, how a round changes them, and where it ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/decode/decoder.h"

namespace blockscope {

struct RoundState {
  RoundState(const DecodeRequest& of, int64_t mask_token_id);

  const DecodeRequest* request;
  int64_t mask;  // the draft's mask token
  int64_t prompt_length;
  int64_t end;                  // first position after the answer
  std::vector<int64_t> tokens;  // prompt and decided tokens; the last one is not yet an input
  std::vector<int64_t> answer;  // in a replay: its tokens after the prompt
  int64_t round = 0;
  DecodeOutcome outcome;

  int64_t start() const { return std::ssize(tokens) - 1; }  // position of the certain token
  /// In a replay, replaces the target's choices from position `first` on by the given answer, with
  /// the target's probabilities of it. logits [T, V]: a row for each entry of `chosen`.
  void take_given(int64_t first, const at::Tensor& logits, BlockPrediction& chosen) const;
  NextToken next(const BlockPrediction& choices, int64_t row) const;
  /// The decision of a round's step. `predicted`: the tokens for block positions from 1 on; those
  /// after the block are left out. `accepted`: how many of them were accepted.
  StepDecision decision(const std::vector<int64_t>& predicted, const std::vector<float>& confidence,
                        int64_t block_length, int64_t accepted) const;
  /// Ends the sequence as dflash_generate does: at a stop token after the prompt, or at the length.
  /// A replay ends where its answer ends.
  void find_end(const std::vector<int64_t>& stop_ids);
  /// [gen_length] tokens; masks where nothing was decided.
  std::vector<int64_t> generated() const;
};

/// The number of positions (prompt and answer) of the longest request.
int64_t longest_end(const std::vector<DecodeRequest>& requests);

}  // namespace blockscope
