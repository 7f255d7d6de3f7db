#include "cli/analyze_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "analysis/metrics/token_similarity.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/error.h"
#include "decode_record/trace_layout.h"

namespace blockscope {
namespace {

Field field_of(const TraceReader& trace, const std::string& name) {
  const std::map<std::string, Field> fields = {{"internal", Field::attention_internal},
                                               {"query", Field::query},
                                               {"hidden", Field::hidden},
                                               {"key", Field::block_key},
                                               {"value", Field::block_value}};
  const Field field = name == "external" ? exact_fields(trace).external : fields.at(name);
  require_field(trace, field, "--matrix");
  return field;
}

std::int64_t the_only(const Indices& indices, const std::string& flag, std::int64_t fallback) {
  if (!indices) return fallback;
  if (indices->size() == 1) return indices->front();
  throw UsageError(
      fmt::format("{}: a matrix takes one, got {}. HINT: name one index", flag, indices->size()));
}

/// Position of the model's index among the recorded ones, which parse_selection() has checked.
std::size_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t index) {
  return static_cast<std::size_t>(std::ranges::find(recorded, index) - recorded.begin());
}

/// The slot of --head on the field's head axis; unset: all heads.
std::optional<std::size_t> head_slot(const TraceShape& shape, Field field,
                                     const AnalyzeSelection& selection) {
  if (!selection.heads) return std::nullopt;
  const std::int64_t head = the_only(selection.heads, "--head", 0);
  if (field == Field::hidden) throw UsageError("--head: hidden states have no heads");
  const bool of_kv_heads = field == Field::block_key || field == Field::block_value;
  return of_kv_heads ? slot_of(shape.kv_heads, selection.kv_heads->front())
                     : slot_of(shape.heads, head);
}

const StepRef* recorded_step(const BlockSteps& block, std::int64_t step) {
  const auto found = std::ranges::find(block.steps, step, &StepRef::step);
  return found == block.steps.end() || !found->recorded ? nullptr : &*found;
}

/// The first block of the selection with these steps recorded; without steps, with any two.
BlockSteps choose_block(const TraceReader& trace, const RowSelection& rows,
                        const std::vector<std::int64_t>& steps) {
  const auto blocks = list_blocks(trace, rows);
  for (const BlockSteps& block : blocks) {
    const auto has = [&](std::int64_t step) { return recorded_step(block, step) != nullptr; };
    const bool two = std::ranges::count_if(block.steps, &StepRef::recorded) >= 2;
    if (steps.empty() ? two : std::ranges::all_of(steps, has)) return block;
  }
  throw UsageError(fmt::format(
      "--matrix: none of {} blocks of {} has {} recorded. HINT: --sequence, --block and --step "
      "select others",
      blocks.size(), trace.info().path,
      steps.empty() ? "two steps" : fmt::format("steps {}", fmt::join(steps, " and "))));
}

ResultAxis numbered(std::string name, std::size_t size, double first) {
  ResultAxis axis{std::move(name), std::vector<double>(size), {}};
  std::iota(axis.index.begin(), axis.index.end(), first);
  return axis;
}

ResultArray to_array(const SimilarityMatrix& matrix, const std::string& field, ResultAxis rows,
                     ResultAxis columns, const std::string& description) {
  return {field,
          "cosine",
          description,
          {std::move(rows), std::move(columns)},
          {matrix.values.begin(), matrix.values.end()},
          {}};
}

struct Rows {
  std::int64_t a = 0, b = 0;
  std::string text;
};

/// --row-a and --row-b, or two steps of one block.
Rows choose_rows(const TraceReader& trace, const AnalyzeFlags& flags,
                 const AnalyzeSelection& selection) {
  if ((flags.row_a < 0) != (flags.row_b < 0)) {
    throw UsageError("--row-a, --row-b: give both, or neither and --step");
  }
  if (flags.row_a >= 0) {
    const std::int64_t rows = trace.info().num_rows;
    for (const auto& [name, row] : {std::pair("--row-a", flags.row_a), {"--row-b", flags.row_b}}) {
      if (row >= rows)
        throw UsageError(fmt::format("{}: expected a row below {}, got {}", name, rows, row));
    }
    return {flags.row_a, flags.row_b, fmt::format("row {} and row {}", flags.row_a, flags.row_b)};
  }
  std::vector<std::int64_t> steps = selection.steps.value_or(std::vector<std::int64_t>{});
  if (steps.size() == 1) steps.push_back(steps[0] + 1);
  if (steps.size() > 2) {
    throw UsageError(
        fmt::format("--step: a token matrix takes two steps, or one and the step "
                    "after it; got {}",
                    steps.size()));
  }
  const BlockSteps block = choose_block(trace, selection.rows, steps);
  if (steps.empty()) {
    for (const StepRef& step : block.steps) {
      if (step.recorded && steps.size() < 2) steps.push_back(step.step);
    }
  }
  return {recorded_step(block, steps[0])->row, recorded_step(block, steps[1])->row,
          fmt::format("sequence {}, block {}, step {} and step {}", block.sequence, block.block,
                      steps[0], steps[1])};
}

}  // namespace

MetricResult similarity_matrix(const TraceGroup& traces, const AnalyzeFlags& flags) {
  if (traces.size() != 1) {
    throw UsageError(fmt::format("--matrix: expected one trace, got {}", traces.size()));
  }
  const TraceReader& trace = traces.trace(0);
  const TraceShape& shape = traces.shape();
  const AnalyzeSelection selection = parse_selection(flags, shape);
  const Field field = field_of(trace, flags.field);
  const std::int64_t layer = the_only(selection.layers, "--layer", shape.layers.front());
  const std::size_t slot = slot_of(shape.layers, layer);
  const auto head = head_slot(shape, field, selection);
  MetricResult result;
  result.source = "FlashBlock, arXiv 2602.05305, Fig. 1";
  result.computed_from = spec_of(field).path;
  const std::string where =
      fmt::format("{}, layer {}{}", flags.field, layer, head ? ", head " + flags.heads : "");
  if (flags.matrix == "token") {
    const Rows rows = choose_rows(trace, flags, selection);
    const auto matrix = token_similarity(trace, field, rows.a, rows.b, slot, head);
    result.metric = "token_similarity";
    result.title = "Token x token similarity of " + rows.text;
    result.formula = "C_ij = cos(X_i of the first, X_j of the second)";
    result.arrays.push_back(to_array(matrix, flags.field, numbered("position_a", matrix.rows, 0),
                                     numbered("position_b", matrix.columns, 0), where));
    return result;
  }
  const BlockSteps block = choose_block(trace, selection.rows, {});
  const auto matrix = step_similarity(trace, field, block, slot, head);
  result.metric = "step_similarity";
  result.title =
      fmt::format("Step x step similarity of sequence {}, block {}", block.sequence, block.block);
  result.formula = "mean over positions i of cos(X_i of step_a, X_i of step_b)";
  std::vector<double> steps;
  for (const StepRef& step : block.steps) steps.push_back(step.step);
  result.arrays.push_back(to_array(matrix, flags.field, ResultAxis{"step_a", steps, {}},
                                   ResultAxis{"step_b", steps, {}}, where));
  return result;
}

}  // namespace blockscope
