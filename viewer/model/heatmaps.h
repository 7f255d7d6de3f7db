// Data of the Heatmap panel: similarities between two steps' tokens and between a block's steps,
// and the positions of its top-k sets. No ImGui here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// Token similarities between the selected step and `to`, in the selected layer: for the selected
/// head, or with `all_heads` over all heads.
Data<MatrixPayload> request_token_matrix(ViewModel& model, const std::string& slot, Field field,
                                         const StepRef* to, bool all_heads);
/// Similarities between the steps of the selected block.
Data<MatrixPayload> request_step_matrix(ViewModel& model, const std::string& slot, Field field,
                                        bool all_heads);

/// Positions of the top-k sets of a block over its steps: [steps, k], -1: none.
struct SetsPayload : Payload {
  std::size_t k = 0;
  std::vector<std::int32_t> steps;      ///< step in block of each row
  std::vector<std::int32_t> positions;  ///< [steps, k], by falling probability
  std::vector<float> probability;       ///< [steps, k]
  std::int32_t context_length = 0;
  std::vector<std::string> token_texts;  ///< [context_length], readable; the token of each position
  std::size_t bytes() const override;
};
/// Sets of the selected block and layer, for the selected head's KV head.
Data<SetsPayload> request_sets(ViewModel& model);

/// `rows` and `columns` are names such as "token at step 3".
struct MatrixAxes {
  std::string rows, columns;
  std::vector<std::int32_t> row_numbers, column_numbers;
};
/// Cells of the A_out and A_in matrices; either may be null.
CsvTable matrices_table(const MatrixPayload* external, const MatrixPayload* internal,
                        const MatrixAxes& axes);
/// step, rank, position, token, probability.
CsvTable sets_table(const SetsPayload& sets);

}  // namespace blockscope
