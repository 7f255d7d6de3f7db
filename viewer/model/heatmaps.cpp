#include "viewer/model/heatmaps.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/metrics/token_similarity.h"
#include "decode_record/base/error.h"
#include "viewer/model/step_keys.h"

namespace blockscope {
namespace {

std::optional<std::size_t> head_of(const ViewModel& model, bool all_heads) {
  return all_heads ? std::nullopt : std::optional(model.selection().head);
}

std::string name_of_head(const std::optional<std::size_t>& head) {
  return head ? std::to_string(*head) : "all";
}

std::shared_ptr<const SetsPayload> read_sets(const TraceReader& trace, const BlockSteps& block,
                                             std::size_t layer, std::size_t kv_head) {
  auto payload = std::make_shared<SetsPayload>();
  payload->k = static_cast<std::size_t>(trace.info().meta.set_size);
  const auto first = static_cast<std::ptrdiff_t>(kv_head * payload->k);
  for (const StepRef& step : block.steps) {
    if (!step.recorded) continue;
    const auto slot = static_cast<std::int64_t>(layer);
    const auto positions = trace.read_ints_at(Field::set_topk, step.row, slot);
    const auto probability = trace.read_floats_at(Field::set_probability, step.row, slot);
    const auto count = static_cast<std::ptrdiff_t>(payload->k);
    if (static_cast<std::ptrdiff_t>(positions.size()) < first + count ||
        positions.size() != probability.size()) {
      throw CorruptTrace(
          fmt::format("{}: row {}: /sets/topk has {} values for layer slot {}, "
                      "expected at least {}",
                      trace.info().path, step.row, positions.size(), layer, first + count));
    }
    payload->positions.insert(payload->positions.end(), positions.begin() + first,
                              positions.begin() + first + count);
    payload->probability.insert(payload->probability.end(), probability.begin() + first,
                                probability.begin() + first + count);
    payload->steps.push_back(step.step);
    payload->context_length = std::max(payload->context_length, step.context_length);
  }
  if (!block.steps.empty()) {
    payload->token_texts = read_prefix_text(trace, block)->tokens;
  }
  return payload;
}

}  // namespace

std::size_t SetsPayload::bytes() const {
  return sizeof(*this) + positions.size() * 8 + steps.size() * 4 +
         token_texts.size() * sizeof(std::string);
}

Data<MatrixPayload> request_token_matrix(ViewModel& model, const std::string& slot, Field field,
                                         const StepRef* to, bool all_heads) {
  const StepRef* from = model.step();
  if (from == nullptr || to == nullptr) return {};
  const std::size_t layer = model.selection().layer;
  const std::optional<std::size_t> head = head_of(model, all_heads);
  return model.ask<MatrixPayload>(
      slot,
      fmt::format("tokens/{}/{}/{}/{}/{}", static_cast<int>(field), from->row, to->row, layer,
                  name_of_head(head)),
      [field, a = from->row, b = to->row, layer, head](const TraceReader& trace, JobControl&) {
        return with_range(token_similarity(trace, field, a, b, layer, head));
      });
}

Data<MatrixPayload> request_step_matrix(ViewModel& model, const std::string& slot, Field field,
                                        bool all_heads) {
  if (model.block() == nullptr) return {};
  const std::size_t layer = model.selection().layer;
  const std::optional<std::size_t> head = head_of(model, all_heads);
  return model.ask<MatrixPayload>(
      slot,
      fmt::format("steps/{}/{}/{}/{}", static_cast<int>(field), model.selection().block, layer,
                  name_of_head(head)),
      [field, block = *model.block(), layer, head](const TraceReader& trace, JobControl& control) {
        const TraceMeta& meta = trace.info().meta;
        control.require(block.steps.size() * row_bytes(spec_of(field), meta) /
                        std::max<std::size_t>(1, meta.layers.size()));
        return with_range(step_similarity(trace, field, block, layer, head));
      });
}

Data<SetsPayload> request_sets(ViewModel& model) {
  if (model.block() == nullptr) return {};
  const auto kv_head = model.kv_head_slot();
  if (!kv_head) return {DataState::failed, nullptr, 0.0, kNoKvHead};
  const Selection& at = model.selection();
  return model.ask<SetsPayload>(
      "sets", fmt::format("sets/{}/{}/{}", at.block, at.layer, *kv_head),
      [block = *model.block(), layer = at.layer, slot = *kv_head](
          const TraceReader& trace, JobControl&) { return read_sets(trace, block, layer, slot); });
}

CsvTable matrices_table(const MatrixPayload* external, const MatrixPayload* internal,
                        const MatrixAxes& axes) {
  CsvTable table({axes.rows, axes.columns, "A_out [cosine]", "A_in [cosine]"});
  const MatrixPayload* any = external != nullptr ? external : internal;
  if (any == nullptr) return table;
  const auto cell = [](const MatrixPayload* matrix, std::size_t at) {
    return matrix == nullptr ? CsvTable::Cell{} : double{matrix->matrix.values[at]};
  };
  for (std::size_t row = 0; row < any->matrix.rows; ++row) {
    for (std::size_t column = 0; column < any->matrix.columns; ++column) {
      const std::size_t at = row * any->matrix.columns + column;
      table.add({std::int64_t{axes.row_numbers.at(row)},
                 std::int64_t{axes.column_numbers.at(column)}, cell(external, at),
                 cell(internal, at)});
    }
  }
  return table;
}

CsvTable sets_table(const SetsPayload& sets) {
  CsvTable table({"step", "rank", "position in the prefix", "token", "probability"});
  for (std::size_t i = 0; i < sets.positions.size(); ++i) {
    if (sets.positions[i] < 0) continue;
    const auto position = static_cast<std::size_t>(sets.positions[i]);
    table.add({std::int64_t{sets.steps[i / sets.k]}, static_cast<std::int64_t>(i % sets.k) + 1,
               std::int64_t{sets.positions[i]},
               position < sets.token_texts.size() ? CsvTable::Cell{sets.token_texts[position]}
                                                  : CsvTable::Cell{},
               double{sets.probability[i]}});
  }
  return table;
}

}  // namespace blockscope
