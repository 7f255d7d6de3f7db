#include "analysis/metrics/similarity_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analysis/metrics/attention_map.h"
#include "analysis/metrics/matrix_choice.h"
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

/// The slot of the head on the field's head axis; unset: all heads.
std::optional<std::size_t> head_slot(const TraceShape& shape, Field field, std::int64_t layer,
                                     const MatrixRequest& request) {
  if (!request.head) return std::nullopt;
  const std::string& word = request.words.head;
  if (field == Field::hidden) {
    throw UsageError(fmt::format("{}: hidden states have no heads", word));
  }
  const std::size_t slot = slot_of(shape.heads, *request.head, word);
  if (field != Field::block_key && field != Field::block_value) return slot;
  return slot_of(shape.kv_heads, shape.kv_head_of(layer, *request.head),
                 word + ", the KV head of it");
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
  const BlockSteps block = choose_block(trace, request, steps, 2);
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

MatrixRequest::Kind matrix_kind(std::string_view name) {
  const auto found = std::ranges::find(kMatrixKinds, name);
  if (found == kMatrixKinds.end()) {
    throw UsageError(fmt::format("matrix: expected token, step or attention, got '{}'", name));
  }
  return static_cast<MatrixRequest::Kind>(found - kMatrixKinds.begin());
}

MetricResult similarity_matrix(const TraceGroup& traces, const MatrixRequest& request) {
  if (request.kind == MatrixRequest::Kind::attention) return attention_matrix(traces, request);
  const TraceReader& trace = the_one_trace(traces, request);
  const TraceShape& shape = traces.shape();
  const Field field = field_of(trace, request);
  const std::int64_t layer = request.layer.value_or(shape.layers.front());
  const std::size_t slot = slot_of(shape.layers, layer, request.words.layer);
  const auto head = head_slot(shape, field, layer, request);
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
  const BlockSteps block = choose_block(trace, request, {}, 2);
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
