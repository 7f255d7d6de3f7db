// What one denoising step changes in a Frame: transfers (masks that became tokens, tokens that
// another one replaced, tokens that became masks again), insertions and deletions. A delta of a
// batch has rows only for sequences that are still active. Field names follow d2Cache's
// `FrameDelta` (src/frame.py).
//
// Order and index rules, the same for one sequence and for each row of a batch:
//   1. transfers: position `transfer_index[i]` of the frame before the delta takes the token
//      `decoded_tokens[source]`, source = transfer_src_index[i] (transfer_index[i] when empty);
//   2. insertions: `insert_index[i]` counts in the frame before any insertion: v inserts before
//      element v, gen_length at the end. Equal indices keep their order in the list;
//   3. deletions: `delete_index[i]` counts in the frame after the insertions.
// Every transferred and inserted token gets step = (largest step of its sequence before the delta)
// + 1, unless the delta has explicit steps. In a batch, all active rows must insert the same number
// n and delete the same number. A finished sequence gets n mask tokens at position 0 (step
// kUndecodedStep, confidence 0). A deletion takes its leading undecoded masks, never a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "decode_record/frames/frame.h"

namespace blockscope {

/// The changes of one sequence.
struct SequenceDelta {
  std::vector<std::int64_t> transfer_index;      ///< [num_transfers], distinct, in [0, gen_length)
  std::vector<std::int64_t> transfer_src_index;  ///< [num_transfers] into decoded_tokens, or empty
  std::vector<std::int64_t> insert_index;        ///< [num_insertions], in [0, gen_length]
  std::vector<std::int64_t> insert_src_index;    ///< [num_insertions] into decoded_tokens
  std::vector<std::int64_t> delete_index;    ///< [num_deletions], distinct, in [0, gen_length + n)
  std::vector<std::int64_t> decoded_tokens;  ///< [num_decoded]; gen_length when src index is empty
  std::vector<float> confidence;             ///< [num_decoded], or empty (then 0 is stored)
  std::vector<std::int64_t> transfer_step;   ///< [num_transfers] explicit steps, or empty
  std::vector<std::int64_t> insert_step;     ///< [num_insertions] explicit steps, or empty

  bool empty() const {
    return transfer_index.empty() && insert_index.empty() && delete_index.empty();
  }
  bool operator==(const SequenceDelta&) const = default;
};

struct FrameDelta {
  std::size_t num_sequences = 1;       ///< of the frame this delta applies to
  std::vector<std::size_t> active{0};  ///< sequences with a row, ascending; the others are finished
  std::vector<SequenceDelta> rows{1};  ///< [active.size()]

  /// Throws FrameError unless this delta fits `frame`: counts, ranges, distinct indices.
  void check(const Frame& frame) const;

  bool operator==(const FrameDelta&) const = default;
};

/// The usual delta of one sequence: `tokens[i]` with `confidence[i]` goes to `positions[i]`.
FrameDelta make_transfer(std::vector<std::int64_t> positions, std::vector<std::int64_t> tokens,
                         std::vector<float> confidence);

/// The delta of a canvas without masks (TraceMeta::noise_canvas), where each step accepts anew:
/// `tokens[i]` goes to `positions[i]`. It is noise where `confidence[i]` is kUntouchedConfidence
/// (step kUndecodedStep). The others are accepted with the step after those of `before` (one
/// sequence); one that is accepted with the same token again keeps its step and confidence.
FrameDelta make_canvas(const Frame& before, std::vector<std::int64_t> positions,
                       std::vector<std::int64_t> tokens, std::vector<float> confidence);

/// Whether transfer `i` of a resolved delta leaves its position undecided: it puts a mask or noise
/// there.
bool leaves_undecided(const SequenceDelta& delta, std::size_t i);

/// Changes `frame` in place. For a delta that doesn't fit, throws and changes nothing.
void apply_delta(Frame& frame, const FrameDelta& delta);

/// `delta` in compact form and with explicit steps, as applied to `before`. In compact form,
/// decoded_tokens has only the used tokens: first the transfers', then the insertions'. Applying it
/// gives the same frame.
FrameDelta resolve_delta(const Frame& before, const FrameDelta& delta);

/// One delta in resolved form that does the same to `before` as `first` and then `second`.
FrameDelta compose(const Frame& before, const FrameDelta& first, const FrameDelta& second);

}  // namespace blockscope
