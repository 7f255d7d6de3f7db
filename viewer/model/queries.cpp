#include "viewer/model/queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "analysis/metrics/available_metrics.h"
#include "analysis/metrics/metrics.h"
#include "analysis/results/result_selection.h"
#include "decode_record/base/error.h"
#include "viewer/model/panel_metrics.h"

namespace blockscope {
namespace {

/// Longest answer of one sequence; only a damaged file has more positions.
constexpr std::int64_t kMostPositions = 1 << 20;
constexpr std::int64_t kSequencesAtATime = 256;

/// Length of the valid UTF-8 sequence at `at`; 0 if there is none.
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

std::string token_bytes(const TraceReader& trace, std::int64_t token) {
  if (trace.num_pieces() == 0) return fmt::format("#{}", token);
  if (token < 0 || token >= trace.num_pieces()) return fmt::format("#{}?", token);
  return trace.piece(token);
}

std::string readable_token(const TraceReader& trace, std::int64_t token) {
  return token < 0 ? std::string(kMaskSymbol) : readable_piece(token_bytes(trace, token));
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
  const std::int64_t sequences = overview->info.num_sequences;
  for (std::int64_t first = 0; first < sequences; first += kSequencesAtATime) {
    const std::int64_t count = std::min(kSequencesAtATime, sequences - first);
    for (SequenceInfo& sequence : trace.sequences(first, count)) {
      overview->sequence_names.push_back(std::move(sequence.name));
    }
  }
  overview->blocks = list_blocks(trace);
  return overview;
}

std::int64_t answer_length(const TraceReader& trace, std::int64_t sequence,
                           const SequenceInfo& info) {
  if (info.gen_length > kMostPositions) {
    throw CorruptTrace(fmt::format("{}: sequence {}: expected at most {} positions, got {}",
                                   trace.info().path, sequence, kMostPositions, info.gen_length));
  }
  return std::max<std::int64_t>(0, info.gen_length);
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
  require_pass(TraceGroup({trace.info().path}), metric, rows, control, from_summary);
}

void require_pass(const TraceGroup& group, const std::string& metric, const RowSelection& rows,
                  const JobControl& control, bool from_summary) {
  MetricOptions options;
  options.from_summary = from_summary;
  const std::size_t row =
      check_metrics(group, {&metric_by_name(metric)}, options, group.shape().layers.size());
  std::size_t recorded = 0;
  for (const BlockSteps& block : list_blocks(group.trace(0), rows)) {
    recorded += static_cast<std::size_t>(std::ranges::count(block.steps, true, &StepRef::recorded));
  }
  control.require(row * recorded);
}

std::shared_ptr<const MetricPayload> compute_metric(const TraceReader& trace,
                                                    const std::string& metric,
                                                    const RowSelection& rows, bool from_summary,
                                                    JobControl& control) {
  if (const MetricResult* const loaded = result_of_file(metric)) {
    auto payload = std::make_shared<MetricPayload>();
    std::vector<MetricResult> part{*loaded};
    for (const auto& [axis, wanted] :
         {std::pair("sequence", rows.sequences), std::pair("block", rows.blocks)}) {
      if (!wanted) continue;
      const bool has = std::ranges::any_of(
          loaded->arrays,
          [&, name = axis](const ResultArray& array) { return array.has_axis(name); });
      if (!has) {
        throw Error(fmt::format(
            "The file has no axis {}, so its values are those of all. Choose \"whole trace\".",
            axis));
      }
      keep_elements(part, axis, {wanted->begin(), wanted->end()});
    }
    payload->result = std::move(part.front());
    return payload;
  }
  const TraceGroup group({trace.info().path});
  require_pass(group, metric, rows, control, from_summary);
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
  payload->result = std::move(run_pass(group, metrics, options).at(0));
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

}  // namespace blockscope
