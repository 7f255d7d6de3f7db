#include "decode_record/interchange/import_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "decode_record/base/error.h"
#include "decode_record/schema/trace_meta.h"

namespace blockscope {
namespace {

// As in a trace: a probability, a little above 1 because sums are rounded, or a smaller measure.
constexpr double kLargestConfidence = 1.01;
constexpr double kSmallestConfidence = -1e30;

/// Runs `work`. A delta that does not fit becomes an error of the file.
template <typename Work>
auto blame(const JsonNode& node, const Work& work) {
  try {
    return work();
  } catch (const FrameError& error) {
    node.complain(error.what());
  }
}

}  // namespace

bool given(const JsonNode& node, const char* key) {
  return node.has(key) && !node.member(key).is_null();
}

float read_confidence(const JsonNode& node, float missing) {
  if (node.is_null()) return missing;
  return static_cast<float>(node.number(kSmallestConfidence, kLargestConfidence));
}

std::int64_t read_token(const JsonNode& node, const ImportedTrajectory& facts) {
  const std::int64_t token = node.integer(-kLargestLength, kLargestLength);
  if (token == facts.mask_token_id || (token >= 0 && token < facts.vocab_size)) return token;
  node.refuse(
      fmt::format("a token in 0 to {}, or the mask {}", facts.vocab_size - 1, facts.mask_token_id));
}

std::int64_t agreed(const std::optional<std::int64_t>& flag, const char* option,
                    const JsonNode& holder, const char* member, std::int64_t least,
                    std::int64_t most) {
  if (!given(holder, member)) {
    if (flag) return *flag;
    throw UsageError(fmt::format(
        "{}: needed, because the file does not say it. HINT: give the model's", option));
  }
  const JsonNode node = holder.member(member);
  const std::int64_t value = node.integer(least, most);
  if (flag && *flag != value) node.refuse(fmt::format("{}, as {} says", *flag, option));
  return value;
}

void check_import_size(const JsonNode& node, std::size_t steps, std::size_t positions) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  if (steps == 0 || positions <= kMost / steps) return;
  node.complain(fmt::format("expected at most {} steps times positions, got {} times {}", kMost,
                            steps, positions));
}

void check_block_length(const JsonNode& node, std::int64_t block_length, std::int64_t longest) {
  if (block_length <= std::max<std::int64_t>(1, longest)) return;
  node.complain(fmt::format("expected blocks of at most the {} positions of a sequence, got {}",
                            longest, block_length));
}

ImportState::ImportState(const ImportedTrajectory& facts, SequenceStart start)
    : facts_(facts),
      prompt_length_(static_cast<std::int64_t>(start.prompt.size())),
      frame_(make_initial_frame(start.prompt, static_cast<std::size_t>(start.gen_length),
                                facts.mask_token_id)) {
  sequence_.start = std::move(start);
}

std::int64_t ImportState::block_of(std::int64_t position) const {
  return (position + (facts_.block_causal ? prompt_length_ : 0)) / facts_.block_length;
}

std::pair<std::int64_t, std::int64_t> ImportState::range_of(std::int64_t block) const {
  const std::int64_t origin = facts_.block_causal ? prompt_length_ : 0;
  const auto length = static_cast<std::int64_t>(frame_.gen_length);
  const std::int64_t first = block * facts_.block_length - origin;
  return {std::clamp<std::int64_t>(first, 0, length),
          std::clamp<std::int64_t>(first + facts_.block_length, 0, length)};
}

void ImportState::begin(const JsonNode& node, const FrameDelta& delta) {
  blame(node, [&] {
    sequence_.before = resolve_delta(frame_, delta).rows.front();
    apply_delta(frame_, delta);
  });
}

void ImportState::check_transfers(const JsonNode& node, const SequenceDelta& row,
                                  bool may_edit) const {
  for (std::size_t i = 0; i < row.transfer_index.size(); ++i) {
    const std::int64_t position = row.transfer_index[i];
    const std::int64_t there = frame_.generated_tokens[static_cast<std::size_t>(position)];
    const std::int64_t token =
        row.decoded_tokens[static_cast<std::size_t>(row.transfer_src_index[i])];
    if (there != facts_.mask_token_id && token != facts_.mask_token_id &&
        (!may_edit || there == token)) {
      node.complain(fmt::format(
          "token {} at position {} after the prompt: expected a mask there, got token {}, decided "
          "before and not taken back",
          token, position, there));
    }
    if (block_of(position) != block_of(row.transfer_index.front())) {
      node.complain(fmt::format(
          "positions {} and {} after the prompt are in two blocks of length {}. HINT: "
          "--block-length {} if the run had one block",
          row.transfer_index.front(), position, facts_.block_length, frame_.gen_length));
    }
  }
}

void ImportState::add_step(const JsonNode& node, FrameDelta delta, std::vector<BestToken> best) {
  ImportedStep step;
  // Without stated steps, a token on a token is a file whose deltas are exchanged or repeated.
  const bool states_steps = !delta.rows.front().transfer_step.empty();
  step.delta = blame(node, [&] { return resolve_delta(frame_, delta).rows.front(); });
  check_transfers(node, step.delta, states_steps);
  const std::int64_t next = frame_.current_step() + 1;
  for (std::size_t i = 0; i < step.delta.transfer_index.size(); ++i) {
    const auto source = static_cast<std::size_t>(step.delta.transfer_src_index[i]);
    const std::int64_t position = step.delta.transfer_index[i];
    const std::int64_t there = frame_.generated_tokens[static_cast<std::size_t>(position)];
    const bool masked = step.delta.decoded_tokens[source] == facts_.mask_token_id;
    if (masked && there != facts_.mask_token_id) {
      step.delta.confidence[source] = kUntouchedConfidence;
      step.delta.transfer_step[i] = kUndecodedStep;
      step.revoked.push_back({position, there, std::numeric_limits<float>::quiet_NaN()});
    } else if (step.delta.transfer_step[i] < (masked ? kUndecodedStep : 0) ||
               step.delta.transfer_step[i] > next) {
      node.complain(fmt::format("transfer_step: expected {} to {}, got {}",
                                masked ? kUndecodedStep : 0, next, step.delta.transfer_step[i]));
    }
  }
  std::ranges::sort(step.revoked, {}, &RevokedToken::position);
  for (std::size_t i = 0; i < step.delta.insert_index.size(); ++i) {
    const auto source = static_cast<std::size_t>(step.delta.insert_src_index[i]);
    const bool masked = step.delta.decoded_tokens[source] == facts_.mask_token_id;
    if (step.delta.insert_step[i] >= (masked ? kUndecodedStep : 0) &&
        step.delta.insert_step[i] <= next) {
      continue;
    }
    node.complain(fmt::format("insert_step: expected {} to {}, got {}", masked ? kUndecodedStep : 0,
                              next, step.delta.insert_step[i]));
  }
  if (!step.delta.transfer_index.empty()) {
    step.block = block_of(step.delta.transfer_index.front());
  } else if (!best.empty()) {
    step.block = block_of(best.front().position);
  } else {
    step.block = sequence_.steps.empty() ? block_of(0) : sequence_.steps.back().block;
  }
  const std::pair<std::int64_t, std::int64_t> range = range_of(step.block);
  std::erase_if(best, [&](const BestToken& token) {
    return token.position < range.first || token.position >= range.second;
  });
  step.best = std::move(best);
  FrameDelta resolved;
  resolved.rows.front() = step.delta;
  apply_delta(frame_, resolved);
  const auto length = static_cast<std::int64_t>(frame_.gen_length) + prompt_length_;
  if (length > kLargestLength) {
    node.complain(fmt::format("expected at most {} positions, got {}", kLargestLength, length));
  }
  sequence_.steps.push_back(std::move(step));
}

ImportedSequence ImportState::finish(SequenceEnd end) {
  sequence_.end = std::move(end);
  return std::move(sequence_);
}

}  // namespace blockscope
