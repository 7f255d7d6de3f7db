// Data of the Compare panel: the active trace (A) compared with another one (B). analysis/ computes
// every number, in the background. No ImGui here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/metrics/trace_comparison.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/panel_metrics.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// Which sequences belong together, and why the two traces may not be comparable.
struct PairPayload : Payload {
  SequenceMatches matches;
  std::vector<std::string> differences;  ///< between the recorded parts; one sentence each
  bool same_architecture = true;         ///< false: layers and heads of A and B don't correspond
  std::size_t bytes() const override;

  /// The partner of this sequence of A; nullptr if it has none.
  const SequenceMatch* of(std::int64_t sequence_a) const;
  /// "20 sequences in both; 3 only in A, 1 only in B".
  std::string text() const;
};

struct MetricComparison : Payload {
  std::string problem_a, problem_b;                      ///< why a side has no values; else empty
  ResultArray by_head_a, by_head_b;                      ///< means_by_head
  ResultArray by_step_a, by_step_b;                      ///< means_by_step
  ResultArray by_step_difference;                        ///< B - A; without axes when there is none
  std::shared_ptr<const MatrixPayload> grid_a, grid_b;   ///< [layers, heads] of each
  std::shared_ptr<const MatrixPayload> grid_difference;  ///< [layers, heads] of A; or null
  std::size_t bytes() const override;
};

struct TokensPayload : Payload {
  TokenComparison tokens;
  SequenceMatch match;
  std::string name;
  std::vector<std::string> text_a, text_b;  ///< [positions], readable; a mask: one symbol
  std::size_t bytes() const override;
};

enum class CompareScope { everything, matched, sequence };

/// All of these are `loading` while ViewModel::other_trace() is unset.
Data<PairPayload> compare_pair(ViewModel& model);
/// Metric `choice` of panel_metrics(). The scope is all rows, the sequences of both traces, or the
/// selected sequence and its partner.
Data<MetricComparison> compare_metric(ViewModel& model, std::size_t choice, CompareScope scope);
/// The selected sequence and its partner.
Data<TokensPayload> compare_trajectories(ViewModel& model);
/// compare_query_statistics with A as the trained model and B as its backbone.
Data<MetricPayload> compare_queries(ViewModel& model);

/// layer, head, A, B, B - A.
CsvTable compared_heads_table(const MetricComparison& data, const PanelMetric& choice,
                              const TraceMeta& meta_a, const TraceMeta& meta_b);
/// layer, head, step, A, B, B - A of every head.
CsvTable compared_steps_table(const MetricComparison& data, const PanelMetric& choice);
/// step, position, state, final tokens.
CsvTable compared_tokens_table(const TokensPayload& data);
/// Every array in long form: array, unit, model, stage or layer or step, value, terms.
CsvTable compared_queries_table(const MetricResult& result);

}  // namespace blockscope
