#include "decode_record/frames/frame.h"

#include <fmt/format.h>

#include <algorithm>

namespace blockscope {
namespace {

void check_sequence(const Frame& frame, std::size_t sequence) {
  if (sequence >= frame.num_sequences) {
    throw FrameError(
        fmt::format("frame: expected a sequence below {}, got {}", frame.num_sequences, sequence));
  }
}

template <typename Element>
std::span<const Element> row_of(const Frame& frame, const std::vector<Element>& values,
                                std::size_t sequence) {
  check_sequence(frame, sequence);
  return std::span<const Element>(values).subspan(sequence * frame.gen_length, frame.gen_length);
}

}  // namespace

std::span<const std::int64_t> Frame::tokens_of(std::size_t sequence) const {
  return row_of(*this, generated_tokens, sequence);
}

std::span<const float> Frame::confidence_of(std::size_t sequence) const {
  return row_of(*this, confidence, sequence);
}

std::span<const std::int64_t> Frame::steps_of(std::size_t sequence) const {
  return row_of(*this, steps, sequence);
}

std::int64_t Frame::current_step(std::size_t sequence) const {
  const auto row = steps_of(sequence);
  return row.empty() ? kUndecodedStep : std::max(kUndecodedStep, *std::ranges::max_element(row));
}

std::size_t Frame::masks_left(std::size_t sequence) const {
  check_sequence(*this, sequence);
  std::size_t count = 0;
  for (std::size_t i = 0; i < gen_length; ++i) count += undecided(sequence * gen_length + i);
  return count;
}

Frame Frame::sequence(std::size_t sequence) const {
  const auto tokens = tokens_of(sequence);
  const auto sureness = confidence_of(sequence);
  const auto numbers = steps_of(sequence);
  Frame result;
  result.num_sequences = 1;
  result.gen_length = gen_length;
  result.mask_token_id = mask_token_id;
  result.prompts = {prompts.at(sequence)};
  result.generated_tokens.assign(tokens.begin(), tokens.end());
  result.confidence.assign(sureness.begin(), sureness.end());
  result.steps.assign(numbers.begin(), numbers.end());
  return result;
}

void Frame::check() const {
  const std::size_t expected = num_sequences * gen_length;
  if (prompts.size() != num_sequences || generated_tokens.size() != expected ||
      confidence.size() != expected || steps.size() != expected) {
    throw FrameError(fmt::format(
        "frame: expected {} prompts and [{}, {}] tokens, confidences and steps, got {} prompts and "
        "{}, {} and {} elements",
        num_sequences, num_sequences, gen_length, prompts.size(), generated_tokens.size(),
        confidence.size(), steps.size()));
  }
}

Frame make_initial_frame(std::vector<std::int64_t> prompt, std::size_t gen_length,
                         std::int64_t mask_token_id) {
  Frame frame;
  frame.num_sequences = 1;
  frame.gen_length = gen_length;
  frame.mask_token_id = mask_token_id;
  frame.prompts.push_back(std::move(prompt));
  frame.generated_tokens.assign(gen_length, mask_token_id);
  frame.confidence.assign(gen_length, kUntouchedConfidence);
  frame.steps.assign(gen_length, kUndecodedStep);
  return frame;
}

Frame stack_frames(std::span<const Frame> frames) {
  if (frames.empty()) throw FrameError("stack_frames: expected at least one frame, got none");
  Frame result;
  result.gen_length = frames.front().gen_length;
  result.mask_token_id = frames.front().mask_token_id;
  for (const Frame& frame : frames) {
    frame.check();
    if (frame.gen_length != result.gen_length || frame.mask_token_id != result.mask_token_id) {
      throw FrameError(fmt::format(
          "stack_frames: expected gen_length {} and mask_token_id {}, got {} and {}",
          result.gen_length, result.mask_token_id, frame.gen_length, frame.mask_token_id));
    }
    result.num_sequences += frame.num_sequences;
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(result.prompts, frame.prompts);
    append(result.generated_tokens, frame.generated_tokens);
    append(result.confidence, frame.confidence);
    append(result.steps, frame.steps);
  }
  return result;
}

}  // namespace blockscope
