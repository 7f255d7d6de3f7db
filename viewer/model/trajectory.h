// Data of the Trajectory panel: one sequence's trajectory. No ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/frames/token_changes.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// A grid positions x steps.
struct Trajectory : Payload {
  struct Cell {
    std::int32_t step = 0;  ///< t, the denoising step of the sequence that set the token, from 0
    std::int32_t position = 0;  ///< after the prompt
    float confidence = 0.0F;
    std::string text;  ///< the token's piece, readable; "#id" when the trace has no vocabulary
    bool end_of_text = false;  ///< a stop token, or another token that ends a text
    ChangeKind kind = ChangeKind::decided;
    bool masked = false;  ///< a mask from this step on
    std::string before;   ///< the token that was replaced or taken back; empty: a mask
  };
  struct Row {
    std::int64_t row = 0;
    std::int32_t block = 0;
    std::int32_t step_in_block = 0;
    std::int32_t first_position = 0;  ///< start of the block after the prompt; may be negative
    float timestep = 0.0F;            ///< of a continuous model
    std::int32_t inserted = 0;        ///< positions (StepChanges)
    std::int32_t deleted = 0;
  };
  /// A column of the picture: one position, or a run of positions that never hold anything but
  /// end-of-text tokens. A run ends with its block.
  struct Column {
    std::int64_t position = 0;
    std::int64_t count = 1;
    std::int64_t runs_before = 0;  ///< columns to the left that are runs
  };
  bool continuous = false;  ///< the model is, so there are no tokens
  std::string prompt;
  std::int64_t gen_length = 0;
  std::vector<Row> rows;    ///< denoising steps in order
  std::vector<Cell> cells;  ///< ascending by step
  /// For each position, ascending indices into `cells`: the decisions that set and changed it.
  std::vector<std::vector<std::int32_t>> cells_of_position;
  std::vector<Column> columns;  ///< every position is in one of them, ascending
  std::size_t bytes() const override;

  /// Index into `cells` of the token at a position after step t; nullopt: still a mask.
  std::optional<std::int32_t> shown(std::int64_t position, std::int32_t t) const;
  /// The column of a position, which must be in [0, gen_length).
  const Column& column_of(std::int64_t position) const;
  /// Positions of the column that hold a token after step t.
  std::int64_t decided(const Column& column, std::int32_t t) const;
  /// The text after step t, with one symbol per mask and one mark per run of end-of-text tokens.
  std::string text_after(std::int32_t t) const;
};
std::shared_ptr<const Trajectory> read_trajectory(const TraceReader& trace, std::int64_t sequence,
                                                  JobControl& control);
/// Trajectory of the selected sequence.
Data<Trajectory> request_trajectory(ViewModel& model);

/// position, step, block, step in block, token, confidence, change, before: every change.
CsvTable trajectory_table(const Trajectory& trajectory);

}  // namespace blockscope
