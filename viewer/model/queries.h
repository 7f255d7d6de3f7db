// What the panels ask a trace for. Each function reads and computes one payload on the background
// thread; every number comes from analysis/ or straight from the file. No ImGui here.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/metrics/token_similarity.h"
#include "analysis/pass/block_index.h"
#include "analysis/results/metric_result.h"
#include "viewer/model/data_service.h"

namespace blockscope {

/// What a trace holds besides its arrays; read once when it is opened, again when it has grown.
struct Overview : Payload {
  TraceInfo info;
  std::vector<std::string> sequence_names;
  std::vector<BlockSteps> blocks;
  std::size_t bytes() const override;
};
std::shared_ptr<const Overview> read_overview(TraceReader& trace);

/// Positions of a sequence's answer, at least 0. Throws CorruptTrace where no file could hold them.
std::int64_t answer_length(const TraceReader& trace, std::int64_t sequence,
                           const SequenceInfo& info);

/// One sequence's trajectory as a grid positions x steps.
struct Trajectory : Payload {
  struct Cell {
    std::int32_t step = 0;  ///< t, the denoising step of the sequence that set the token, from 0
    std::int32_t position = 0;  ///< after the prompt
    float confidence = 0.0F;
    std::string text;  ///< the token's piece, readable; "#id" when the trace has no vocabulary
    bool taken_back = false;  ///< a mask again from this step on
  };
  struct Row {
    std::int64_t row = 0;
    std::int32_t block = 0;
    std::int32_t step_in_block = 0;
    std::int32_t first_position = 0;  ///< of the block, after the prompt; may be negative
  };
  std::string prompt;
  std::int64_t gen_length = 0;
  std::vector<Row> rows;    ///< denoising steps in order
  std::vector<Cell> cells;  ///< ascending by step
  /// For each position, indices into `cells`, ascending: who set it and who changed it later.
  std::vector<std::vector<std::int32_t>> cells_of_position;
  std::size_t bytes() const override;

  /// Index into cells of what a position shows after step t; nullopt: still a mask.
  std::optional<std::int32_t> shown(std::int64_t position, std::int32_t t) const;
  /// The text so far; masks as one symbol each.
  std::string text_after(std::int32_t t) const;
};
std::shared_ptr<const Trajectory> read_trajectory(const TraceReader& trace, std::int64_t sequence,
                                                  JobControl& control);

/// Throws JobControl::TooLarge when the arrays that the metric reads for these rows are more than a
/// job may read unasked, and TraceError when the trace lacks them.
void require_pass(const TraceReader& trace, const std::string& metric, const RowSelection& rows,
                  const JobControl& control, bool from_summary = true);

struct MetricPayload : Payload {
  MetricResult result;
  std::size_t bytes() const override;
};
/// A metric of analysis/metrics/metrics.h over one trace; `from_summary`: from its stored summaries
/// where it has them.
std::shared_ptr<const MetricPayload> compute_metric(const TraceReader& trace,
                                                    const std::string& metric,
                                                    const RowSelection& rows, bool from_summary,
                                                    JobControl& control);

struct MatrixPayload : Payload {
  SimilarityMatrix matrix;
  float low = 0.0F, high = 0.0F;  ///< of the values that are numbers
  std::size_t missing = 0;        ///< cells that are NaN
  std::size_t bytes() const override;
};
std::shared_ptr<const MatrixPayload> with_range(SimilarityMatrix matrix);

/// Positions of the top-k sets of a block over its steps: [steps, k], -1: none.
struct SetsPayload : Payload {
  std::size_t k = 0;
  std::vector<std::int32_t> steps;      ///< step in block of each row
  std::vector<std::int32_t> positions;  ///< [steps, k], by falling probability
  std::vector<float> probability;       ///< [steps, k]
  std::int32_t context_length = 0;
  std::vector<std::string> token_texts;  ///< [context_length], readable; what stands there
  std::size_t bytes() const override;
};
std::shared_ptr<const SetsPayload> read_sets(const TraceReader& trace, const BlockSteps& block,
                                             std::size_t layer, std::size_t kv_head);

/// A byte-level BPE piece or any bytes as readable text: invalid UTF-8 and control characters
/// escaped, spaces kept.
std::string readable_piece(const std::string& bytes);

inline constexpr const char* kMaskSymbol = "\u2591";  ///< light shade

/// A token's readable piece, "#id" when the trace has no vocabulary; one symbol for -1, a mask.
std::string readable_token(const TraceReader& trace, std::int64_t token);

}  // namespace blockscope
