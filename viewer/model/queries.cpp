#include "viewer/model/queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "analysis/metrics/available_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/base/error.h"
#include "viewer/model/step_keys.h"

namespace blockscope {
namespace {

/// Of one sequence; more comes from a damaged file.
constexpr std::int64_t kMostPositions = 1 << 20;

/// Length of the valid UTF-8 sequence at `at`; 0: none.
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 && first < 0xF5   ? 4
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xC2 && first < 0xE0 ? 2
                                                             : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return 0;
  }
  // Overlong forms and surrogates.
  if (first == 0xE0 && byte(at + 1) < 0xA0) return 0;
  if (first == 0xED && byte(at + 1) >= 0xA0) return 0;
  if (first == 0xF0 && byte(at + 1) < 0x90) return 0;
  if (first == 0xF4 && byte(at + 1) >= 0x90) return 0;
  return length;
}

std::string token_text(const TraceReader& trace, std::int64_t token) {
  if (trace.num_pieces() == 0) return fmt::format("#{}", token);
  if (token < 0 || token >= trace.num_pieces()) return fmt::format("#{}?", token);
  return trace.piece(token);
}

}  // namespace

std::string readable_piece(const std::string& bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = utf8_length(bytes, at);
    if (length == 0 ||
        (length == 1 && (static_cast<unsigned char>(bytes[at]) < 0x20 || bytes[at] == 0x7F))) {
      const char c = bytes[at++];
      out += c == '\n'   ? std::string("\u23CE")
             : c == '\t' ? std::string("\u21E5")
                         : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out.append(bytes, at, length);
      at += length;
    }
  }
  return out;
}

std::string readable_token(const TraceReader& trace, std::int64_t token) {
  return token < 0 ? std::string(kMaskSymbol) : readable_piece(token_text(trace, token));
}

std::size_t Overview::bytes() const {
  std::size_t sum = sizeof(*this);
  for (const BlockSteps& block : blocks)
    sum += sizeof(block) + block.steps.size() * sizeof(StepRef);
  for (const std::string& name : sequence_names) sum += sizeof(name) + name.size();
  return sum;
}

std::shared_ptr<const Overview> read_overview(TraceReader& trace) {
  auto overview = std::make_shared<Overview>();
  overview->info = trace.info();
  for (std::int64_t i = 0; i < overview->info.num_sequences; ++i) {
    overview->sequence_names.push_back(trace.sequence(i).name);
  }
  overview->blocks = list_blocks(trace);
  return overview;
}

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

std::int64_t answer_length(const TraceReader& trace, std::int64_t sequence,
                           const SequenceInfo& info) {
  if (info.gen_length > kMostPositions) {
    throw CorruptTrace(fmt::format("{}: sequence {}: expected at most {} positions, got {}",
                                   trace.info().path, sequence, kMostPositions, info.gen_length));
  }
  return std::max<std::int64_t>(0, info.gen_length);
}

std::shared_ptr<const Trajectory> read_trajectory(const TraceReader& trace, std::int64_t sequence,
                                                  JobControl& control) {
  auto result = std::make_shared<Trajectory>();
  const SequenceInfo info = trace.sequence(sequence);
  for (const std::int64_t token : info.prompt) result->prompt += token_text(trace, token);
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
    // What a prefill or a commit tells (sub-blocks, drafts) belongs to the step before it.
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
             readable_piece(token_text(trace, token)),
             !delta.transfer_step.empty() && delta.transfer_step[k] == kUndecodedStep});
      }
    }
  }
  return result;
}

std::size_t MetricPayload::bytes() const {
  std::size_t sum = sizeof(*this);
  for (const ResultArray& array : result.arrays) {
    sum += (array.values.size() + array.terms.size()) * sizeof(double);
  }
  return sum;
}

void require_pass(const TraceReader& trace, const std::string& metric, const RowSelection& rows,
                  const JobControl& control, bool from_summary) {
  MetricOptions options;
  options.from_summary = from_summary;
  const TraceGroup group({trace.info().path});
  const std::size_t row =
      check_metrics(group, {&metric_by_name(metric)}, options, group.shape().layers.size());
  std::size_t recorded = 0;
  for (const BlockSteps& block : list_blocks(trace, rows)) {
    recorded += static_cast<std::size_t>(std::ranges::count(block.steps, true, &StepRef::recorded));
  }
  control.require(row * recorded);
}

std::shared_ptr<const MetricPayload> compute_metric(const TraceReader& trace,
                                                    const std::string& metric,
                                                    const RowSelection& rows, bool from_summary,
                                                    JobControl& control) {
  require_pass(trace, metric, rows, control, from_summary);
  MetricOptions metric_options;
  metric_options.from_summary = from_summary;
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(metric_by_name(metric).make(metric_options));
  PassOptions options;
  options.rows = rows;
  options.memory_bytes = std::size_t{64} << 20;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    control.report(static_cast<double>(done), static_cast<double>(total));
    return true;
  };
  auto payload = std::make_shared<MetricPayload>();
  payload->result = std::move(run_pass(TraceGroup({trace.info().path}), metrics, options).at(0));
  return payload;
}

std::size_t MatrixPayload::bytes() const {
  return sizeof(*this) + matrix.values.size() * sizeof(float);
}

std::shared_ptr<const MatrixPayload> with_range(SimilarityMatrix matrix) {
  auto payload = std::make_shared<MatrixPayload>();
  payload->low = std::numeric_limits<float>::infinity();
  payload->high = -payload->low;
  for (const float value : matrix.values) {
    if (!std::isfinite(value)) {
      payload->missing += 1;
      continue;
    }
    payload->low = std::min(payload->low, value);
    payload->high = std::max(payload->high, value);
  }
  payload->matrix = std::move(matrix);
  return payload;
}

std::size_t SetsPayload::bytes() const {
  return sizeof(*this) + positions.size() * 8 + steps.size() * 4 +
         token_texts.size() * sizeof(std::string);
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

}  // namespace blockscope
