// What each panel shows, as a table. Built from the same payloads as the picture, so a file holds
// exactly the numbers on the screen. No ImGui here.
#pragma once

#include "viewer/model/calibration_edit.h"
#include "viewer/model/comparison.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/panel_metrics.h"
#include "viewer/model/queries.h"

namespace blockscope {

/// layer, head (the model's), value.
CsvTable heads_table(const MatrixPayload& grid, const PanelMetric& choice, const TraceMeta& meta);
/// layer, head, step, value, terms of one layer.
CsvTable curves_table(const ResultArray& means, const PanelMetric& choice, const TraceMeta& meta,
                      std::size_t layer);
/// layer, head, A_out, A_in of every head.
CsvTable sides_table(const SimilarityMatrix& external, const SimilarityMatrix& internal,
                     const TraceMeta& meta);
/// k, step, recall.
CsvTable recall_table(const std::vector<SizeCurve>& curves);
/// |union| / k at the bin's centre, share of all steps, share of first steps.
CsvTable unions_table(const UnionDistribution& unions);
/// Cells of the same matrix of A_out and A_in; either may be null. `rows` and `columns` are names
/// such as "token at step 3".
struct MatrixAxes {
  std::string rows, columns;
  std::vector<std::int32_t> row_numbers, column_numbers;
};
CsvTable matrices_table(const MatrixPayload* external, const MatrixPayload* internal,
                        const MatrixAxes& axes);
/// step, rank, position, token, probability.
CsvTable sets_table(const SetsPayload& sets);
/// position, step, block, step in block, token, confidence: every decision.
CsvTable trajectory_table(const Trajectory& trajectory);
/// layer, head, A, B, B - A.
CsvTable compared_heads_table(const MetricComparison& data, const PanelMetric& choice,
                              const TraceMeta& meta_a, const TraceMeta& meta_b);
/// layer, head, step, A, B, B - A of every head.
CsvTable compared_steps_table(const MetricComparison& data, const PanelMetric& choice);
/// step, position, state, and the tokens at the end.
CsvTable compared_tokens_table(const TokensPayload& data);
/// layer, head, similarity, its standard error and 5th percentile, step pairs, reuse, pinned (0 or
/// 1).
CsvTable calibration_table(const CalibrationEdit& edit);
/// Every array in long form: array, unit, model, stage or layer or step, value, terms.
CsvTable compared_queries_table(const MetricResult& result);

/// "masked", "only A", "only B", "equal", "different".
const char* name_of(TokenState state);

}  // namespace blockscope
