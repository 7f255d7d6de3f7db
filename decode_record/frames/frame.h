// A decoding state: the prompt, the generated region with its masks (or noise, in models without
// masks), and for each token the step and the confidence at which it was decided. A Frame holds one
// sequence, or a batch with one gen_length. Meaning and names follow d2Cache's `Frame`
// (src/frame.py). Where that code has bugs, docs/trace_format.md ("Frames") gives the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "decode_record/base/error.h"

namespace blockscope {

/// `steps` value of a position that no delta has decoded yet.
inline constexpr std::int64_t kUndecodedStep = -1;

/// `confidence` of a position that no delta has touched.
inline constexpr float kUntouchedConfidence = -std::numeric_limits<float>::infinity();

/// An index, position or step number is outside its range, or a delta doesn't fit a frame.
class FrameError : public Error {
 public:
  using Error::Error;
};

struct Frame {
  std::size_t num_sequences = 0;
  std::size_t gen_length = 0;  ///< positions of the generated region, the same in every sequence
  std::int64_t mask_token_id = 0;
  std::vector<std::vector<std::int64_t>> prompts;  ///< [num_sequences][prompt_length], may differ
  std::vector<std::int64_t> generated_tokens;      ///< [num_sequences, gen_length]
  std::vector<float> confidence;                   ///< [num_sequences, gen_length]
  std::vector<std::int64_t> steps;  ///< [num_sequences, gen_length]; kUndecodedStep or step >= 0

  /// Row `sequence` of the members above. Throw FrameError when out of range.
  std::span<const std::int64_t> tokens_of(std::size_t sequence) const;
  std::span<const float> confidence_of(std::size_t sequence) const;
  std::span<const std::int64_t> steps_of(std::size_t sequence) const;

  /// The largest step number of `sequence`, kUndecodedStep when nothing is decoded. Always computed
  /// from `steps` (d2Cache caches it and serves a stale value).
  std::int64_t current_step(std::size_t sequence = 0) const;

  /// Whether element i of the generated region is a mask, noise, or not begun. The one test of it:
  /// a position of a canvas without masks is undecided by its step, whatever its token.
  bool undecided(std::size_t i) const {
    return steps[i] == kUndecodedStep || generated_tokens[i] == mask_token_id;
  }

  /// Number of undecided positions of `sequence`.
  std::size_t masks_left(std::size_t sequence = 0) const;

  /// The single-sequence frame of row `sequence`.
  Frame sequence(std::size_t sequence) const;

  /// Throws FrameError unless every vector has the size that num_sequences and gen_length give.
  void check() const;

  bool operator==(const Frame&) const = default;
};

/// The frame that a sequence starts with: all masks.
Frame make_initial_frame(std::vector<std::int64_t> prompt, std::size_t gen_length,
                         std::int64_t mask_token_id);

/// The batch of `frames` (single or batched); gen_length and mask_token_id must agree.
Frame stack_frames(std::span<const Frame> frames);

}  // namespace blockscope
