#include "analysis/report/trajectory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "analysis/figures/gnuplot.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

[[noreturn]] void corrupt(const TraceReader& trace, std::int64_t row, const std::string& what) {
  throw CorruptTrace(
      fmt::format("{}: row {}: {}. HINT: the file is damaged.", trace.info().path, row, what));
}

/// Adds the existing positions of the block and their tokens before the first step.
void add_initial_positions(const TraceReader& trace, const StepRef& first, TrajectoryBlock& block) {
  const Frame frame = trace.frame_before(first.row);
  if (frame.prompts.empty()) corrupt(trace, first.row, "expected a prompt, got none");
  const std::vector<std::int64_t>& prompt = frame.prompts[0];
  const auto prompt_length = static_cast<std::int64_t>(prompt.size());
  const auto gen_length = static_cast<std::int64_t>(frame.gen_length);
  const std::vector<std::int32_t> valid = trace.read_ints(Field::step_valid, first.row, 1);
  for (std::size_t i = 0; i < valid.size(); ++i) {
    // A cache may leave positions of a block out of its first pass.
    if (valid[i] == 0 && !trace.has(Field::query_end)) continue;
    TrajectoryPosition item;
    item.position = first.block_start + static_cast<std::int64_t>(i);
    const std::int64_t generated = item.position - prompt_length;
    if (generated >= gen_length) continue;  // the last block may go past the sequence's end
    if (item.position < 0 || generated >= std::ssize(frame.generated_tokens)) {
      corrupt(trace, first.row, fmt::format("position {} is outside the sequence", item.position));
    }
    const auto at = static_cast<std::size_t>(generated);
    if (generated < 0 || !frame.undecided(at)) {
      item.token = generated < 0 ? prompt[static_cast<std::size_t>(item.position)]
                                 : frame.generated_tokens[at];
      item.step = 0;
      item.events.push_back({0, item.token, item.confidence, ChangeKind::decided});
    }
    block.positions.push_back(item);
  }
}

/// `tokens`: the answer's, before the step.
void add_step(const TraceReader& trace, const StepRef& step, std::int64_t prompt_length,
              std::vector<std::int64_t>& tokens, TrajectoryBlock& block) {
  const TraceMeta& meta = trace.info().meta;
  const std::int64_t end = step.block_start - prompt_length + meta.block_length;
  for (const SequenceDelta& delta : trace.delta(step.row).rows) {
    for (const std::int64_t position : delta.transfer_index) {
      if (position < 0) {
        corrupt(trace, step.row, fmt::format("expected positions of at least 0, got {}", position));
      }
    }
    const std::size_t length = tokens.size();
    const StepChanges changes = follow_delta(tokens, 0, delta, meta.undecided_token(), end);
    if (tokens.size() != length) {
      throw TraceError(
          fmt::format("{}: row {} changes the number of positions from {} to {}, which this "
                      "picture can't show. "
                      "HINT: `blockscope export` writes the deltas",
                      trace.info().path, step.row, length, tokens.size()));
    }
    for (const TokenChange& change : changes.changes) {
      const auto item = std::ranges::find(block.positions, prompt_length + change.position,
                                          &TrajectoryPosition::position);
      if (item == block.positions.end()) continue;
      const bool masked = change.after == meta.undecided_token();
      item->events.push_back(
          {step.step, masked ? -1 : change.after, change.confidence, change.kind});
      item->token = masked ? -1 : change.after;
      item->step = masked ? -1 : step.step;
      item->confidence = change.confidence;
    }
  }
}

/// Length in bytes of the UTF-8 sequence that starts with this byte; 0 if none does.
std::size_t announced_length(unsigned char lead) {
  if (lead >= 0xF0) return 4;
  if (lead >= 0xE0) return 3;
  if (lead >= 0xC2) return 2;
  return lead < 0x80 ? 1 : 0;
}

}  // namespace

TrajectoryBlock trajectory_of(const TraceReader& trace, const BlockSteps& block) {
  TrajectoryBlock trajectory;
  trajectory.block = block.block;
  if (block.steps.empty()) return trajectory;
  add_initial_positions(trace, block.steps.front(), trajectory);
  const auto prompt_length =
      static_cast<std::int64_t>(trace.sequence(block.sequence).prompt.size());
  std::vector<std::int64_t> tokens = tokens_to_follow(trace.frame_before(block.steps.front().row),
                                                      trace.info().meta.undecided_token());
  for (const StepRef& step : block.steps) {
    trajectory.num_steps = std::max(trajectory.num_steps, step.step);
    add_step(trace, step, prompt_length, tokens, trajectory);
  }
  return trajectory;
}

std::string token_text(const TraceReader& trace, std::int64_t token) {
  if (token < 0) return "";
  const std::string piece = trace.num_pieces() == 0 ? "" : trace.piece(token);
  if (piece.empty()) return fmt::format("#{}", token);
  // A byte of a longer character, alone in its piece, is shown as its number.
  if (piece.size() == 1 && announced_length(static_cast<unsigned char>(piece[0])) != 1) {
    return fmt::format("<{:02X}>", static_cast<unsigned char>(piece[0]));
  }
  std::string text;
  for (const char c : piece) {
    if (c == ' ') {
      text += "\u2423";
    } else if (c == '\n') {
      text += "\u21B5";
    } else if (c == '\t') {
      text += "\u21E5";
    } else {
      text += c;
    }
  }
  return printable_utf8(text);
}

}  // namespace blockscope
