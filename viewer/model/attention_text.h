// Data of the Attention panel: the weights of one step, layer and head, with the text of the keys.
// Computed on the background thread; no ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/metrics/attention_map.h"
#include "decode_record/read/end_of_text.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

struct AttentionText : Payload {
  AttentionMap map;
  std::vector<float> mean;           ///< [N + T], over the block's queries
  std::vector<std::string> texts;    ///< [N + T], readable; "#id" without a vocabulary
  std::vector<std::size_t> regions;  ///< [N + T], indices into region_names
  std::vector<std::string> region_names;
  std::vector<std::size_t> by_position;  ///< the keys by rising position
  std::vector<std::int32_t> runs;        ///< [N + T], by position: end_of_text_runs()
  bool has_pieces = false;               ///< false: there is no text, only token ids
  std::size_t bytes() const override;

  /// Weights of one query of the block; unset: the mean. [N + T]
  std::span<const float> weights(std::optional<std::size_t> query) const;
  /// Sums of these weights by region.
  std::vector<double> masses(std::span<const float> weights) const;
};

/// Keeps what the steps of a block share: the keys outside it, and the texts of tokens. It forgets
/// them when the file changes.
class AttentionSource {
 public:
  /// `version`: ViewModel::trace_key() of the trace that the next calls read.
  void begin(const std::string& version);
  std::shared_ptr<const KeysOutside> keys(const TraceReader& trace, const BlockSteps& block,
                                          const StepRef& step, std::size_t layer,
                                          std::size_t kv_head);
  std::string text(const TraceReader& trace, std::int64_t token);
  const EndOfText& ends(const TraceReader& trace);

 private:
  std::string version_, key_;
  std::shared_ptr<const KeysOutside> keys_;
  std::unordered_map<std::int64_t, std::string> texts_;
  std::optional<EndOfText> ends_;
};

std::shared_ptr<const AttentionText> read_attention_text(const TraceReader& trace,
                                                         const BlockSteps& block,
                                                         const StepRef& step, std::size_t layer,
                                                         std::size_t head, AttentionSource& source);
/// The view of the selected step, layer and head. Only the background thread uses `source`.
Data<AttentionText> request_attention_text(ViewModel& model,
                                           const std::shared_ptr<AttentionSource>& source);

/// The weights over positions, in `columns` columns of the same width or less: the largest of each.
/// [B, columns]
std::shared_ptr<const MatrixPayload> binned_weights(const AttentionText& view, std::size_t columns);
/// The position of the first key of each of these columns.
std::vector<std::int64_t> column_positions(const AttentionText& view, std::size_t columns);

/// position, token, region, weight; by position.
CsvTable attention_table(const AttentionText& view, std::optional<std::size_t> query);
/// query, position, weight.
CsvTable attention_map_table(const AttentionText& view);

}  // namespace blockscope
