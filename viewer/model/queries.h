// What the panels request from a trace. Each function computes one payload on the background
// thread. Every number comes from analysis/ or directly from the file. No ImGui here.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/metrics/token_similarity.h"
#include "analysis/pass/block_index.h"
#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"
#include "viewer/model/data_service.h"

namespace blockscope {

/// What a trace holds besides its arrays. Read when the trace is opened and whenever it has grown.
struct Overview : Payload {
  TraceInfo info;
  std::vector<std::string> sequence_names;
  std::vector<BlockSteps> blocks;
  std::size_t bytes() const override;
};
std::shared_ptr<const Overview> read_overview(TraceReader& trace);

/// Number of positions of a sequence's answer, at least 0. Throws CorruptTrace if no file could
/// hold so many.
std::int64_t answer_length(const TraceReader& trace, std::int64_t sequence,
                           const SequenceInfo& info);

/// Throws TraceError if the trace lacks the arrays that the metric reads for these rows. Throws
/// JobControl::TooLarge if a job may not read so much without asking the user.
void require_pass(const TraceReader& trace, const std::string& metric, const RowSelection& rows,
                  const JobControl& control, bool from_summary = true);
/// The same for a group of one trace.
void require_pass(const TraceGroup& group, const std::string& metric, const RowSelection& rows,
                  const JobControl& control, bool from_summary = true);

struct MetricPayload : Payload {
  MetricResult result;
  std::size_t bytes() const override;
};
/// A metric of analysis/metrics/metrics.h over one trace. `from_summary`: uses the stored summaries
/// if the trace has them.
std::shared_ptr<const MetricPayload> compute_metric(const TraceReader& trace,
                                                    const std::string& metric,
                                                    const RowSelection& rows, bool from_summary,
                                                    JobControl& control);

struct MatrixPayload : Payload {
  SimilarityMatrix matrix;
  float low = 0.0F, high = 0.0F;  ///< range of the values that are numbers
  std::size_t missing = 0;        ///< cells that are NaN
  std::size_t bytes() const override;
};
std::shared_ptr<const MatrixPayload> with_range(SimilarityMatrix matrix);

/// A byte-level BPE piece or any bytes as readable text: invalid UTF-8 and control characters
/// escaped, spaces kept.
std::string readable_piece(const std::string& bytes);

/// A token's bytes, or "#id" if the trace has no vocabulary.
std::string token_bytes(const TraceReader& trace, std::int64_t token);

inline constexpr const char* kMaskSymbol = "\u2591";  ///< light shade

/// A token's readable piece, or "#id" if the trace has no vocabulary. kMaskSymbol for -1, a mask.
std::string readable_token(const TraceReader& trace, std::int64_t token);

}  // namespace blockscope
