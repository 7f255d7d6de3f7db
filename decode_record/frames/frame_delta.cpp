// A delta is applied to one sequence's row at a time. RowState is a copy of that row of the frame.
#include "decode_record/frames/frame_delta.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace blockscope {
namespace {

struct Cell {
  std::int64_t token;
  float confidence;
  std::int64_t step;
};
using RowState = std::vector<Cell>;  // [gen_length]

RowState take_row(const Frame& frame, std::size_t sequence) {
  const std::size_t first = sequence * frame.gen_length;
  RowState row(frame.gen_length);
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = {frame.generated_tokens[first + i], frame.confidence[first + i],
              frame.steps[first + i]};
  }
  return row;
}

void put_rows(Frame& frame, const std::vector<RowState>& rows) {
  frame.gen_length = rows.empty() ? frame.gen_length : rows.front().size();
  const std::size_t elements = rows.size() * frame.gen_length;
  frame.generated_tokens.resize(elements);
  frame.confidence.resize(elements);
  frame.steps.resize(elements);
  std::size_t at = 0;
  for (const RowState& row : rows) {
    for (const Cell& cell : row) {
      frame.generated_tokens[at] = cell.token;
      frame.confidence[at] = cell.confidence;
      frame.steps[at++] = cell.step;
    }
  }
}

std::int64_t next_step(const RowState& row) {
  std::int64_t last = kUndecodedStep;
  for (const Cell& cell : row) last = std::max(last, cell.step);
  return last + 1;
}

/// The index of transfer `i`'s token in decoded_tokens.
std::size_t transfer_source(const SequenceDelta& delta, std::size_t i) {
  const auto& source = delta.transfer_src_index;
  return static_cast<std::size_t>(source.empty() ? delta.transfer_index[i] : source[i]);
}

Cell decoded_cell(const SequenceDelta& delta, std::size_t source, std::int64_t step) {
  return {delta.decoded_tokens[source], delta.confidence.empty() ? 0.0F : delta.confidence[source],
          step};
}

Cell transferred(const SequenceDelta& delta, std::size_t i, std::int64_t step) {
  return decoded_cell(delta, transfer_source(delta, i),
                      delta.transfer_step.empty() ? step : delta.transfer_step[i]);
}

Cell inserted(const SequenceDelta& delta, std::size_t i, std::int64_t step) {
  return decoded_cell(delta, static_cast<std::size_t>(delta.insert_src_index[i]),
                      delta.insert_step.empty() ? step : delta.insert_step[i]);
}

/// Insertions by rising target; equal targets keep their order. (d2Cache applies the inverse of
/// this permutation, which is wrong for a 3-cycle.)
std::vector<std::size_t> insertion_order(const SequenceDelta& delta) {
  std::vector<std::size_t> order(delta.insert_index.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return delta.insert_index[i]; });
  return order;
}

void delete_cells(RowState& row, const std::vector<std::int64_t>& index) {
  if (index.empty()) return;
  std::vector<bool> gone(row.size(), false);
  for (const std::int64_t i : index) gone[static_cast<std::size_t>(i)] = true;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!gone[i]) row[kept++] = row[i];
  }
  row.resize(kept);
}

void apply_row(RowState& row, const SequenceDelta& delta) {
  const std::int64_t step = next_step(row);
  for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
    row[static_cast<std::size_t>(delta.transfer_index[i])] = transferred(delta, i, step);
  }
  if (!delta.insert_index.empty()) {
    RowState grown;
    grown.reserve(row.size() + delta.insert_index.size());
    auto next = row.cbegin();
    for (const std::size_t i : insertion_order(delta)) {
      const auto stop = row.cbegin() + delta.insert_index[i];
      grown.insert(grown.end(), next, stop);
      next = stop;
      grown.push_back(inserted(delta, i, step));
    }
    grown.insert(grown.end(), next, row.cend());
    row = std::move(grown);
  }
  delete_cells(row, delta.delete_index);
}

/// A finished sequence of a batch follows the others' length and never loses a token.
void apply_finished(RowState& row, std::size_t insertions, std::size_t deletions,
                    std::int64_t mask) {
  row.insert(row.begin(), insertions, Cell{mask, 0.0F, kUndecodedStep});
  row.erase(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(deletions));
}

[[noreturn]] void refuse(std::size_t sequence, std::string_view field, std::string_view what) {
  throw FrameError(fmt::format("frame delta, sequence {}: {}: {}", sequence, field, what));
}

void check_range(std::size_t sequence, std::string_view field,
                 const std::vector<std::int64_t>& index, std::size_t limit, bool distinct) {
  std::vector<bool> seen(distinct ? limit : 0, false);
  for (const std::int64_t i : index) {
    if (i < 0 || static_cast<std::uint64_t>(i) >= limit) {
      refuse(sequence, field, fmt::format("expected an index in [0, {}), got {}", limit, i));
    }
    if (!distinct) continue;
    if (seen[static_cast<std::size_t>(i)]) {
      refuse(sequence, field, fmt::format("index {} occurs twice", i));
    }
    seen[static_cast<std::size_t>(i)] = true;
  }
}

void check_count(std::size_t sequence, std::string_view field, std::size_t expected,
                 std::size_t got) {
  if (expected != got) {
    refuse(sequence, field, fmt::format("expected {} elements, got {}", expected, got));
  }
}

void check_row(const SequenceDelta& row, std::size_t sequence, std::size_t gen_length) {
  const std::size_t decoded = row.decoded_tokens.size();
  check_range(sequence, "transfer_index", row.transfer_index, gen_length, true);
  if (row.transfer_src_index.empty()) {
    check_range(sequence, "transfer_index into decoded_tokens", row.transfer_index, decoded, false);
  } else {
    check_count(sequence, "transfer_src_index", row.transfer_index.size(),
                row.transfer_src_index.size());
    check_range(sequence, "transfer_src_index", row.transfer_src_index, decoded, false);
  }
  check_range(sequence, "insert_index", row.insert_index, gen_length + 1, false);
  check_count(sequence, "insert_src_index", row.insert_index.size(), row.insert_src_index.size());
  check_range(sequence, "insert_src_index", row.insert_src_index, decoded, false);
  check_range(sequence, "delete_index", row.delete_index, gen_length + row.insert_index.size(),
              true);
  if (!row.confidence.empty()) check_count(sequence, "confidence", decoded, row.confidence.size());
  if (!row.transfer_step.empty()) {
    check_count(sequence, "transfer_step", row.transfer_index.size(), row.transfer_step.size());
  }
  if (!row.insert_step.empty()) {
    check_count(sequence, "insert_step", row.insert_index.size(), row.insert_step.size());
  }
}

/// The rows of `delta` by sequence; null for a finished one.
std::vector<const SequenceDelta*> rows_by_sequence(const FrameDelta& delta) {
  std::vector<const SequenceDelta*> rows(delta.num_sequences, nullptr);
  for (std::size_t i = 0; i < delta.active.size(); ++i) rows[delta.active[i]] = &delta.rows[i];
  return rows;
}

/// Insertions and deletions of every active row (0, 0 when all are finished).
std::pair<std::size_t, std::size_t> size_change(const FrameDelta& delta) {
  if (delta.rows.empty()) return {0, 0};
  return {delta.rows.front().insert_index.size(), delta.rows.front().delete_index.size()};
}

void check_finished(const FrameDelta& delta, const Frame& frame) {
  const auto [insertions, deletions] = size_change(delta);
  const auto rows = rows_by_sequence(delta);
  for (std::size_t sequence = 0; sequence < rows.size(); ++sequence) {
    if (rows[sequence] != nullptr) continue;
    const auto steps = frame.steps_of(sequence);
    const auto tokens = frame.tokens_of(sequence);
    std::size_t padding = 0;
    while (padding < steps.size() && steps[padding] == kUndecodedStep &&
           tokens[padding] == frame.mask_token_id) {
      ++padding;
    }
    if (deletions > insertions + padding) {
      refuse(sequence, "delete_index",
             fmt::format("the sequence is finished and has only {} leading masks to give up for "
                         "{} deletions",
                         insertions + padding, deletions));
    }
  }
}

std::vector<RowState> applied_rows(const Frame& frame, const FrameDelta& delta) {
  const auto [insertions, deletions] = size_change(delta);
  const auto deltas = rows_by_sequence(delta);
  std::vector<RowState> rows(frame.num_sequences);
  for (std::size_t sequence = 0; sequence < rows.size(); ++sequence) {
    rows[sequence] = take_row(frame, sequence);
    if (deltas[sequence] != nullptr) {
      apply_row(rows[sequence], *deltas[sequence]);
    } else {
      apply_finished(rows[sequence], insertions, deletions, frame.mask_token_id);
    }
  }
  return rows;
}

/// Most deltas only transfer, and so need no copy of the frame.
bool only_transfers(const FrameDelta& delta) {
  return size_change(delta) == std::pair<std::size_t, std::size_t>{0, 0};
}

void apply_transfers(Frame& frame, const FrameDelta& delta) {
  for (std::size_t r = 0; r < delta.rows.size(); ++r) {
    const SequenceDelta& row = delta.rows[r];
    if (row.transfer_index.empty()) continue;
    const std::size_t sequence = delta.active[r];
    const std::int64_t step = row.transfer_step.empty() ? frame.current_step(sequence) + 1 : 0;
    for (std::size_t i = 0; i < row.transfer_index.size(); ++i) {
      const std::size_t at =
          sequence * frame.gen_length + static_cast<std::size_t>(row.transfer_index[i]);
      const Cell cell = transferred(row, i, step);
      frame.generated_tokens[at] = cell.token;
      frame.confidence[at] = cell.confidence;
      frame.steps[at] = cell.step;
    }
  }
}

}  // namespace

void FrameDelta::check(const Frame& frame) const {
  if (num_sequences != frame.num_sequences || rows.size() != active.size()) {
    throw FrameError(fmt::format(
        "frame delta: expected {} sequences and one row per active sequence, got {} sequences, {} "
        "active, {} rows",
        frame.num_sequences, num_sequences, active.size(), rows.size()));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (active[i] >= num_sequences || (i > 0 && active[i] <= active[i - 1])) {
      throw FrameError(fmt::format(
          "frame delta: expected active sequences in rising order below {}, got {} at {}",
          num_sequences, active[i], i));
    }
    check_row(rows[i], active[i], frame.gen_length);
    if (num_sequences > 1) {
      const auto [insertions, deletions] = size_change(*this);
      check_count(active[i], "insert_index (as in the other rows)", insertions,
                  rows[i].insert_index.size());
      check_count(active[i], "delete_index (as in the other rows)", deletions,
                  rows[i].delete_index.size());
    }
  }
  check_finished(*this, frame);
}

FrameDelta make_transfer(std::vector<std::int64_t> positions, std::vector<std::int64_t> tokens,
                         std::vector<float> confidence) {
  FrameDelta delta;
  SequenceDelta& row = delta.rows.front();
  row.transfer_index = std::move(positions);
  row.decoded_tokens = std::move(tokens);
  row.confidence = std::move(confidence);
  row.transfer_src_index.resize(row.transfer_index.size());
  std::iota(row.transfer_src_index.begin(), row.transfer_src_index.end(), std::int64_t{0});
  check_count(0, "tokens of make_transfer", row.transfer_index.size(), row.decoded_tokens.size());
  if (!row.confidence.empty()) {
    check_count(0, "confidence of make_transfer", row.decoded_tokens.size(), row.confidence.size());
  }
  return delta;
}

FrameDelta make_canvas(const Frame& before, std::vector<std::int64_t> positions,
                       std::vector<std::int64_t> tokens, std::vector<float> confidence) {
  check_count(0, "confidence of make_canvas", positions.size(), confidence.size());
  check_count(0, "tokens of make_canvas", positions.size(), tokens.size());
  check_range(0, "positions of make_canvas", positions, before.gen_length, true);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto at = static_cast<std::size_t>(positions[i]);
    const bool noise = confidence[i] == kUntouchedConfidence;
    if (before.generated_tokens[at] == tokens[i] && before.undecided(at) == noise) continue;
    positions[kept] = positions[i];
    tokens[kept] = tokens[i];
    confidence[kept++] = confidence[i];
  }
  positions.resize(kept);
  tokens.resize(kept);
  confidence.resize(kept);
  FrameDelta delta = make_transfer(std::move(positions), std::move(tokens), std::move(confidence));
  SequenceDelta& row = delta.rows.front();
  const std::int64_t step = before.current_step() + 1;
  for (const float sure : row.confidence) {
    row.transfer_step.push_back(sure == kUntouchedConfidence ? kUndecodedStep : step);
  }
  return delta;
}

bool leaves_undecided(const SequenceDelta& delta, std::size_t i) {
  return i < delta.transfer_step.size() && delta.transfer_step[i] == kUndecodedStep;
}

void apply_delta(Frame& frame, const FrameDelta& delta) {
  frame.check();
  delta.check(frame);
  if (only_transfers(delta)) {
    apply_transfers(frame, delta);
  } else {
    put_rows(frame, applied_rows(frame, delta));
  }
}

FrameDelta resolve_delta(const Frame& before, const FrameDelta& delta) {
  before.check();
  delta.check(before);
  FrameDelta result = delta;
  for (std::size_t r = 0; r < delta.rows.size(); ++r) {
    const SequenceDelta& from = delta.rows[r];
    const std::int64_t step = before.current_step(delta.active[r]) + 1;
    SequenceDelta to;
    to.transfer_index = from.transfer_index;
    to.insert_index = from.insert_index;
    to.delete_index = from.delete_index;
    const auto add = [&to](const Cell& cell, std::vector<std::int64_t>& source,
                           std::vector<std::int64_t>& steps) {
      source.push_back(static_cast<std::int64_t>(to.decoded_tokens.size()));
      to.decoded_tokens.push_back(cell.token);
      to.confidence.push_back(cell.confidence);
      steps.push_back(cell.step);
    };
    for (std::size_t i = 0; i < from.transfer_index.size(); ++i) {
      add(transferred(from, i, step), to.transfer_src_index, to.transfer_step);
    }
    for (std::size_t i = 0; i < from.insert_index.size(); ++i) {
      add(inserted(from, i, step), to.insert_src_index, to.insert_step);
    }
    result.rows[r] = std::move(to);
  }
  return result;
}

}  // namespace blockscope
