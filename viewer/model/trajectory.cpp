#include "viewer/model/trajectory.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode_record/base/error.h"

namespace blockscope {

std::size_t Trajectory::bytes() const {
  std::size_t sum = sizeof(*this) + prompt.size() + rows.size() * sizeof(Row);
  for (const Cell& cell : cells) sum += sizeof(cell) + cell.text.size();
  return sum + cells_of_position.size() * 32;
}

std::optional<std::int32_t> Trajectory::shown(std::int64_t position, std::int32_t t) const {
  if (position < 0 || position >= static_cast<std::int64_t>(cells_of_position.size())) return {};
  std::optional<std::int32_t> found;
  for (const std::int32_t index : cells_of_position[static_cast<std::size_t>(position)]) {
    if (cells[static_cast<std::size_t>(index)].step > t) break;
    found = index;
  }
  if (found && cells[static_cast<std::size_t>(*found)].taken_back) return {};
  return found;
}

std::string Trajectory::text_after(std::int32_t t) const {
  std::string text;
  for (std::int64_t position = 0; position < gen_length; ++position) {
    const auto index = shown(position, t);
    text += index ? cells[static_cast<std::size_t>(*index)].text : std::string(kMaskSymbol);
  }
  return text;
}

std::shared_ptr<const Trajectory> read_trajectory(const TraceReader& trace, std::int64_t sequence,
                                                  JobControl& control) {
  auto result = std::make_shared<Trajectory>();
  const SequenceInfo info = trace.sequence(sequence);
  for (const std::int64_t token : info.prompt) result->prompt += token_bytes(trace, token);
  result->gen_length = answer_length(trace, sequence, info);
  result->cells_of_position.resize(static_cast<std::size_t>(result->gen_length));
  const auto prompt_length = static_cast<std::int32_t>(info.prompt.size());
  const std::vector<std::int64_t> rows = trace.rows_of(sequence);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % 64 == 0) control.report(static_cast<double>(i), static_cast<double>(rows.size()));
    const StepColumns steps = trace.steps(rows[i], 1);
    if (static_cast<PassKind>(steps.kind[0]) == PassKind::denoise) {
      result->rows.push_back(
          {rows[i], steps.block[0], steps.step[0], steps.block_start[0] - prompt_length});
    }
    // Tokens decided by a prefill or a commit (sub-blocks, drafts) belong to the step before it.
    const auto t = static_cast<std::int32_t>(std::max<std::size_t>(result->rows.size(), 1) - 1);
    for (const SequenceDelta& delta : trace.delta(rows[i]).rows) {
      for (std::size_t k = 0; k < delta.transfer_index.size(); ++k) {
        const std::int64_t position = delta.transfer_index[k];
        if (position >= result->gen_length) continue;  // the last block may go past the end
        if (position < 0) {
          throw CorruptTrace(fmt::format("{}: row {}: expected positions of at least 0, got {}",
                                         trace.info().path, rows[i], position));
        }
        const std::int64_t token = k < delta.decoded_tokens.size() ? delta.decoded_tokens[k] : -1;
        result->cells_of_position[static_cast<std::size_t>(position)].push_back(
            static_cast<std::int32_t>(result->cells.size()));
        result->cells.push_back(
            {t, static_cast<std::int32_t>(position),
             k < delta.confidence.size() ? delta.confidence[k] : 0.0F,
             readable_piece(token_bytes(trace, token)),
             !delta.transfer_step.empty() && delta.transfer_step[k] == kUndecodedStep});
      }
    }
  }
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
  CsvTable table({"position", "step", "block", "step in block", "token", "confidence"});
  for (const Trajectory::Cell& cell : trajectory.cells) {
    if (cell.step < 0 || cell.step >= std::ssize(trajectory.rows)) continue;
    const Trajectory::Row& row = trajectory.rows[static_cast<std::size_t>(cell.step)];
    table.add({std::int64_t{cell.position}, std::int64_t{cell.step}, std::int64_t{row.block},
               std::int64_t{row.step_in_block}, cell.text, double{cell.confidence}});
  }
  return table;
}

}  // namespace blockscope
