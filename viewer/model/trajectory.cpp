#include "viewer/model/trajectory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "decode_record/base/error.h"
#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

constexpr std::int64_t kRowsAtOnce = 256;

/// Whether only end-of-text tokens were ever decided at a position, and at least one.
bool only_ends(const Trajectory& trajectory, std::int64_t position) {
  bool any = false;
  for (const std::int32_t index :
       trajectory.cells_of_position[static_cast<std::size_t>(position)]) {
    const Trajectory::Cell& cell = trajectory.cells[static_cast<std::size_t>(index)];
    if (cell.masked) continue;
    if (!cell.end_of_text) return false;
    any = true;
  }
  return any;
}

void arrange_columns(Trajectory& trajectory) {
  std::vector<std::int64_t> starts;  // of blocks
  for (const Trajectory::Row& row : trajectory.rows) starts.push_back(row.first_position);
  std::ranges::sort(starts);
  std::int64_t runs = 0;
  for (std::int64_t first = 0; first < trajectory.gen_length;) {
    const auto next = std::ranges::upper_bound(starts, first);
    const std::int64_t most =
        next == starts.end() ? trajectory.gen_length : std::min(*next, trajectory.gen_length);
    std::int64_t end = first;
    while (end < most && only_ends(trajectory, end)) ++end;
    const std::int64_t count = std::max<std::int64_t>(end - first, 1);
    trajectory.columns.push_back({first, count, runs});
    runs += count > 1 ? 1 : 0;
    first += count;
  }
}

/// Adds what a row did to the answer's tokens. `end`: the answer's position after the row's block.
void add_changes(const TraceReader& trace, std::int64_t row, const SequenceDelta& delta,
                 std::vector<std::int64_t>& tokens, std::int64_t end, std::int32_t t,
                 const EndOfText& ends, Trajectory& result) {
  for (const std::int64_t position : delta.transfer_index) {
    if (position >= 0) continue;
    throw CorruptTrace(fmt::format("{}: row {}: expected positions of at least 0, got {}",
                                   trace.info().path, row, position));
  }
  const std::int64_t mask = trace.info().meta.undecided_token();
  const StepChanges step = follow_delta(tokens, 0, delta, mask, end);
  for (const TokenChange& change : step.changes) {
    const bool masked = change.after == mask;
    if (change.position >= result.gen_length) continue;  // an insertion made the answer longer
    const std::string before =
        change.before == mask ? "" : readable_piece(token_bytes(trace, change.before));
    result.cells_of_position[static_cast<std::size_t>(change.position)].push_back(
        static_cast<std::int32_t>(result.cells.size()));
    result.cells.push_back(
        {t, static_cast<std::int32_t>(change.position), change.confidence,
         masked ? std::string() : readable_piece(token_bytes(trace, change.after)),
         ends.contains(change.after), change.kind, masked, before});
  }
  if (result.rows.empty()) return;
  result.rows.back().inserted += static_cast<std::int32_t>(step.inserted);
  result.rows.back().deleted += static_cast<std::int32_t>(step.deleted);
}

}  // namespace

std::size_t Trajectory::bytes() const {
  std::size_t sum = sizeof(*this) + prompt.size() + rows.size() * sizeof(Row);
  for (const Cell& cell : cells) sum += sizeof(cell) + cell.text.size() + cell.before.size();
  return sum + cells_of_position.size() * 32 + columns.size() * sizeof(Column);
}

std::optional<std::int32_t> Trajectory::shown(std::int64_t position, std::int32_t t) const {
  if (position < 0 || position >= static_cast<std::int64_t>(cells_of_position.size())) return {};
  std::optional<std::int32_t> found;
  for (const std::int32_t index : cells_of_position[static_cast<std::size_t>(position)]) {
    if (cells[static_cast<std::size_t>(index)].step > t) break;
    found = index;
  }
  if (found && cells[static_cast<std::size_t>(*found)].masked) return {};
  return found;
}

const Trajectory::Column& Trajectory::column_of(std::int64_t position) const {
  return *std::prev(std::ranges::upper_bound(columns, position, {}, &Column::position));
}

std::int64_t Trajectory::decided(const Column& column, std::int32_t t) const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < column.count; ++i) count += shown(column.position + i, t) ? 1 : 0;
  return count;
}

std::string Trajectory::text_after(std::int32_t t) const {
  std::string text;
  std::size_t run = 0;    // end-of-text tokens so far
  std::string run_piece;  // of the last one
  const auto end_run = [&] {
    text += run > 1 ? end_of_text_mark(run) : run_piece;
    run = 0;
    run_piece.clear();
  };
  for (std::int64_t position = 0; position < gen_length; ++position) {
    const auto index = shown(position, t);
    const Cell* cell = index ? &cells[static_cast<std::size_t>(*index)] : nullptr;
    if (cell != nullptr && cell->end_of_text) {
      run += 1;
      run_piece = cell->text;
      continue;
    }
    end_run();
    text += cell != nullptr ? cell->text : std::string(kMaskSymbol);
  }
  end_run();
  return text;
}

std::shared_ptr<const Trajectory> read_trajectory(const TraceReader& trace, std::int64_t sequence,
                                                  JobControl& control) {
  auto result = std::make_shared<Trajectory>();
  const SequenceInfo info = trace.sequence(sequence);
  result->continuous = trace.info().meta.continuous();
  for (const std::int64_t token : info.prompt) result->prompt += token_bytes(trace, token);
  result->gen_length = answer_length(trace, sequence, info);
  result->cells_of_position.resize(static_cast<std::size_t>(result->gen_length));
  const auto prompt_length = static_cast<std::int32_t>(info.prompt.size());
  const std::vector<std::int64_t> rows = trace.rows_of(sequence);
  const EndOfText ends(trace);
  const TraceMeta& meta = trace.info().meta;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(result->gen_length),
                                   meta.undecided_token());
  StepColumns steps;  // of rows around this one: a call takes as long for many as for one
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % 64 == 0) control.report(static_cast<double>(i), static_cast<double>(rows.size()));
    if (rows[i] >= steps.first_row + steps.count) {
      steps = trace.steps(rows[i], std::min(kRowsAtOnce, trace.info().num_rows - rows[i]));
    }
    const auto at = static_cast<std::size_t>(rows[i] - steps.first_row);
    if (is_step(static_cast<PassKind>(steps.kind[at]), result->continuous)) {
      result->rows.push_back(
          {rows[i], steps.block[at], steps.step[at], steps.block_start[at] - prompt_length});
      if (result->continuous) {
        result->rows.back().timestep = trace.read_floats(Field::step_timestep, rows[i], 1).front();
      }
    }
    // Tokens decided by a prefill or a commit (sub-blocks, drafts) belong to the step before it.
    const auto t = static_cast<std::int32_t>(std::max<std::size_t>(result->rows.size(), 1) - 1);
    const std::int64_t end = steps.block_start[at] - prompt_length + meta.block_length;
    for (const SequenceDelta& delta : trace.delta(rows[i]).rows) {
      add_changes(trace, rows[i], delta, tokens, end, t, ends, *result);
    }
  }
  arrange_columns(*result);
  return result;
}

Data<Trajectory> request_trajectory(ViewModel& model) {
  if (model.block() == nullptr) return {};
  const std::int64_t sequence = model.block()->sequence;
  return model.ask<Trajectory>("trajectory", fmt::format("trajectory/{}", sequence),
                               [sequence](const TraceReader& trace, JobControl& control) {
                                 return read_trajectory(trace, sequence, control);
                               });
}

CsvTable trajectory_table(const Trajectory& trajectory) {
  if (trajectory.continuous) {
    CsvTable table({"position", "step", "block", "step in block", "timestep"});
    for (std::size_t t = 0; t < trajectory.rows.size(); ++t) {
      const Trajectory::Row& row = trajectory.rows[t];
      table.add({std::int64_t{row.first_position}, static_cast<std::int64_t>(t),
                 std::int64_t{row.block}, std::int64_t{row.step_in_block}, double{row.timestep}});
    }
    return table;
  }
  constexpr std::array kKinds{"decided", "edited", "taken back", "moved"};
  CsvTable table(
      {"position", "step", "block", "step in block", "token", "confidence", "change", "before"});
  for (const Trajectory::Cell& cell : trajectory.cells) {
    if (cell.step < 0 || cell.step >= std::ssize(trajectory.rows)) continue;
    const Trajectory::Row& row = trajectory.rows[static_cast<std::size_t>(cell.step)];
    table.add({std::int64_t{cell.position}, std::int64_t{cell.step}, std::int64_t{row.block},
               std::int64_t{row.step_in_block}, cell.masked ? std::string() : cell.text,
               double{cell.confidence}, kKinds.at(static_cast<std::size_t>(cell.kind)),
               cell.before});
  }
  return table;
}

}  // namespace blockscope
