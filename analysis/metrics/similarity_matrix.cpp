#include "analysis/metrics/similarity_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "analysis/metrics/token_similarity.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/base/error.h"
#include "decode_record/schema/trace_layout.h"

namespace blockscope {
namespace {

Field field_of(const TraceReader& trace, const MatrixRequest& request) {
  const std::map<std::string, Field> fields = {{"internal", Field::attention_internal},
                                               {"query", Field::query},
                                               {"hidden", Field::hidden},
                                               {"key", Field::block_key},
                                               {"value", Field::block_value}};
  const auto named = fields.find(request.field);
  if (named == fields.end() && request.field != "external") {
    throw UsageError(
        fmt::format("field: expected external, internal, query, hidden, key or value, got '{}'",
                    request.field));
  }
  const Field field = named == fields.end() ? exact_fields(trace).external : named->second;
  require_field(trace, field, request.words.matrix);
  return field;
}

/// Recorded slot of the model's index.
std::size_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t index,
                    const std::string& word) {
  const auto found = std::ranges::find(recorded, index);
  if (found == recorded.end()) {
    throw UsageError(fmt::format("{}: {} was not recorded. HINT: the trace has {}", word, index,
                                 fmt::join(recorded, ",")));
  }
  return static_cast<std::size_t>(found - recorded.begin());
}

/// The slot of the head on the field's head axis; unset: all heads.
std::optional<std::size_t> head_slot(const TraceShape& shape, Field field,
                                     const MatrixRequest& request) {
  if (!request.head) return std::nullopt;
  const std::string& word = request.words.head;
  if (field == Field::hidden) {
    throw UsageError(fmt::format("{}: hidden states have no heads", word));
  }
  const std::size_t slot = slot_of(shape.heads, *request.head, word);
  if (field != Field::block_key && field != Field::block_value) return slot;
  const std::int64_t group = shape.num_heads / std::max<std::int64_t>(shape.num_kv_heads, 1);
  return slot_of(shape.kv_heads, *request.head / group, word + ", the KV head of it");
}

const StepRef* recorded_step(const BlockSteps& block, std::int64_t step) {
  const auto found = std::ranges::find(block.steps, step, &StepRef::step);
  return found == block.steps.end() || !found->recorded ? nullptr : &*found;
}

/// The first block of the selection that recorded these steps; without steps, any two.
BlockSteps choose_block(const TraceReader& trace, const MatrixRequest& request,
                        const std::vector<std::int64_t>& steps) {
  const auto blocks = list_blocks(trace, request.rows);
  for (const BlockSteps& block : blocks) {
    const auto has = [&](std::int64_t step) { return recorded_step(block, step) != nullptr; };
    const bool two = std::ranges::count_if(block.steps, &StepRef::recorded) >= 2;
    if (steps.empty() ? two : std::ranges::all_of(steps, has)) return block;
  }
  throw UsageError(
      fmt::format("{}: none of {} blocks of {} has {} recorded. HINT: {} select others",
                  request.words.matrix, blocks.size(), trace.info().path,
                  steps.empty() ? "two steps" : fmt::format("steps {}", fmt::join(steps, " and ")),
                  request.words.others));
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

/// The requested rows, or the rows of two steps of one block.
Rows choose_rows(const TraceReader& trace, const MatrixRequest& request) {
  if (request.row_pair) {
    const auto [a, b] = *request.row_pair;
    const std::int64_t rows = trace.info().num_rows;
    for (const auto& [name, row] : {std::pair(request.words.row_a, a), {request.words.row_b, b}}) {
      if (row < 0 || row >= rows) {
        throw UsageError(fmt::format("{}: expected a row below {}, got {}", name, rows, row));
      }
    }
    return {a, b, fmt::format("row {} and row {}", a, b)};
  }
  std::vector<std::int64_t> steps = request.steps;
  if (steps.size() == 1) steps.push_back(steps[0] + 1);
  if (steps.size() > 2) {
    throw UsageError(
        fmt::format("{}: a token matrix takes two steps, or one step and its next one; got {}",
                    request.words.step, steps.size()));
  }
  const BlockSteps block = choose_block(trace, request, steps);
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

MetricResult similarity_matrix(const TraceGroup& traces, const MatrixRequest& request) {
  if (traces.size() != 1) {
    throw UsageError(
        fmt::format("{}: expected one trace, got {}", request.words.matrix, traces.size()));
  }
  const TraceReader& trace = traces.trace(0);
  const TraceShape& shape = traces.shape();
  const Field field = field_of(trace, request);
  const std::int64_t layer = request.layer.value_or(shape.layers.front());
  const std::size_t slot = slot_of(shape.layers, layer, request.words.layer);
  const auto head = head_slot(shape, field, request);
  MetricResult result;
  result.source = "FlashBlock, arXiv 2602.05305, Fig. 1";
  result.computed_from = spec_of(field).path;
  const std::string where =
      fmt::format("{}, layer {}{}", request.field, layer,
                  request.head ? fmt::format(", head {}", *request.head) : "");
  if (request.kind == MatrixRequest::Kind::token) {
    const Rows rows = choose_rows(trace, request);
    const auto matrix = token_similarity(trace, field, rows.a, rows.b, slot, head);
    result.metric = "token_similarity";
    result.title = "Token x token similarity of " + rows.text;
    result.formula = "C_ij = cos(X_i of the first, X_j of the second)";
    result.arrays.push_back(to_array(matrix, request.field, numbered("position_a", matrix.rows, 0),
                                     numbered("position_b", matrix.columns, 0), where));
    return result;
  }
  const BlockSteps block = choose_block(trace, request, {});
  const auto matrix = step_similarity(trace, field, block, slot, head);
  result.metric = "step_similarity";
  result.title =
      fmt::format("Step x step similarity of sequence {}, block {}", block.sequence, block.block);
  result.formula = "mean over positions i of cos(X_i of step_a, X_i of step_b)";
  std::vector<double> steps;
  for (const StepRef& step : block.steps) steps.push_back(step.step);
  result.arrays.push_back(to_array(matrix, request.field, ResultAxis{"step_a", steps, {}},
                                   ResultAxis{"step_b", steps, {}}, where));
  return result;
}

}  // namespace blockscope
