// One sequence of a drafted run: what is decided of it, how a round changes that, and where it
// ends.
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
  int64_t mask;  // the draft's
  int64_t prompt_length;
  int64_t end;                  // position behind the answer
  std::vector<int64_t> tokens;  // prompt and what is decided; the last one is not yet an input
  std::vector<int64_t> answer;  // of a replay: its tokens behind the prompt
  int64_t round = 0;
  DecodeOutcome outcome;

  int64_t start() const { return std::ssize(tokens) - 1; }  // of the block: the certain token
  /// What a given answer decides in place of the target, from position `first` on, with the
  /// target's probability of it; logits [T, V], a row for each of `chosen`.
  void take_given(int64_t first, const at::Tensor& logits, BlockPrediction& chosen) const;
  NextToken next(const BlockPrediction& choices, int64_t row) const;
  /// A round's step: predictions for block positions from 1 on (what is behind the block is left
  /// out), and which of them were accepted.
  StepDecision decision(const std::vector<int64_t>& predicted, const std::vector<float>& confidence,
                        int64_t block_length, int64_t accepted) const;
  /// As dflash_generate ends: at a stop token in anything behind the prompt, or at the length; a
  /// replay where its answer ends.
  void find_end(const std::vector<int64_t>& stop_ids);
  /// [gen_length], masks where nothing was decided.
  std::vector<int64_t> generated() const;
};

/// Positions of the longest of the requests, prompt and answer.
int64_t longest_end(const std::vector<DecodeRequest>& requests);

}  // namespace blockscope
