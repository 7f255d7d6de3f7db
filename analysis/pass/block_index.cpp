#include "analysis/pass/block_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/schema/reuse_rule.h"

namespace blockscope {
namespace {

constexpr std::int64_t kRowsPerRead = 65536;

bool in_list(const std::optional<std::vector<std::int64_t>>& list, std::int64_t value) {
  return !list || std::ranges::find(*list, value) != list->end();
}

StepRef step_at(const StepColumns& columns, std::size_t i) {
  StepRef step;
  step.row = columns.first_row + static_cast<std::int64_t>(i);
  step.sequence = columns.sequence[i];
  step.block = columns.block[i];
  step.block_start = columns.block_start[i];
  step.step = columns.step[i];
  step.context_length = columns.context_length[i];
  step.changed = step.decided = columns.changed[i];
  step.masks_left = columns.masks_left[i];
  step.recorded = columns.recorded[i] != 0;
  return step;
}

/// What a step read, and what was decided before it since the last step that read.
struct Reads {
  std::int64_t since_read = 0;
  std::int64_t rows_read = 0;
};

/// The tokens that the step before this row decided. Moves `last` to this row.
std::int32_t decided_after(Reads& last, const StepColumns& columns, std::size_t i) {
  const Reads now{columns.since_read[i], columns.rows_read[i]};
  const std::int64_t decided = decided_between(now.since_read, last.since_read, last.rows_read);
  last = now;
  return static_cast<std::int32_t>(decided);
}

[[noreturn]] void corrupt(const TraceReader& trace, std::int64_t row, const std::string& what) {
  throw CorruptTrace(fmt::format("{}:/steps: row {}: {}. HINT: the file is damaged.",
                                 trace.info().path, row, what));
}

/// Step numbers determine the size of tables, so they are checked: there are at most as many steps
/// as rows.
void check_step(const TraceReader& trace, const StepRef& step, const BlockSteps& block) {
  const std::int64_t last = block.steps.empty() ? 0 : block.steps.back().step;
  if (step.step <= last || step.step > trace.info().num_rows) {
    corrupt(trace, step.row,
            fmt::format("sequence {}, block {}: expected a step after {}, got {}", step.sequence,
                        step.block, last, step.step));
  }
  if (step.context_length < 0 || step.changed < 0 || step.decided < 0 || step.block_start < 0) {
    corrupt(trace, step.row,
            fmt::format("expected counts, got context_length {}, changed {}, {} tokens that the "
                        "step before decided (since_read) and block_start {}",
                        step.context_length, step.changed, step.decided, step.block_start));
  }
  const std::int64_t length = trace.info().meta.block_length;
  if (step.masks_left < 0 || step.masks_left > length) {
    corrupt(trace, step.row,
            fmt::format("expected at most {} masks in a block, got {}", length, step.masks_left));
  }
}

}  // namespace

bool RowSelection::contains(std::int64_t sequence, std::int64_t block) const {
  return in_list(sequences, sequence) && in_list(blocks, block);
}

std::vector<BlockSteps> list_blocks(const TraceReader& trace, const RowSelection& selection) {
  const std::int64_t rows = trace.info().num_rows;
  const std::vector<std::uint8_t> aborted = trace.aborted();
  const bool continuous = trace.info().meta.continuous();
  std::map<std::pair<std::int64_t, std::int32_t>, std::size_t> index_of;
  std::vector<BlockSteps> blocks;
  std::vector<Reads> last;  // by block, of its last step so far
  for (std::int64_t first = 0; first < rows; first += kRowsPerRead) {
    const StepColumns columns = trace.steps(first, std::min(kRowsPerRead, rows - first));
    for (std::size_t i = 0; std::cmp_less(i, columns.count); ++i) {
      if (!is_step(static_cast<PassKind>(columns.kind[i]), continuous)) continue;
      StepRef step = step_at(columns, i);
      if (step.sequence < 0 || std::cmp_greater_equal(step.sequence, aborted.size())) {
        corrupt(
            trace, step.row,
            fmt::format("expected a sequence in [0, {}), got {}", aborted.size(), step.sequence));
      }
      if (aborted[static_cast<std::size_t>(step.sequence)] != 0) continue;
      if (!selection.contains(step.sequence, step.block)) continue;
      const auto [entry, is_new] = index_of.try_emplace({step.sequence, step.block}, blocks.size());
      if (is_new) {
        blocks.push_back(BlockSteps{step.sequence, step.block, {}});
        last.emplace_back();
      }
      if (trace.info().meta.has_since_read) {
        step.decided = decided_after(last[entry->second], columns, i);
      }
      BlockSteps& block = blocks[entry->second];
      check_step(trace, step, block);
      block.steps.push_back(step);
    }
  }
  return blocks;
}

}  // namespace blockscope
