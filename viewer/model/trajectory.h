// One sequence's trajectory: what the Trajectory panel shows. No ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
/// Of the selected sequence.
Data<Trajectory> request_trajectory(ViewModel& model);

/// position, step, block, step in block, token, confidence: every decision.
CsvTable trajectory_table(const Trajectory& trajectory);

}  // namespace blockscope
