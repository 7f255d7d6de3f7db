// The result of `blockscope lens --json`, as the Lens panel shows it. No ImGui here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "viewer/model/csv_table.h"
#include "viewer/model/queries.h"

namespace blockscope {

struct LensData {
  struct Values {
    std::string name, unit;                       ///< "lens_rank", "log2"
    std::shared_ptr<const MatrixPayload> matrix;  ///< [layers, steps]
  };
  std::string path, model_digest;
  std::vector<std::int64_t> layers, steps;  ///< the model's layers; steps from 1
  std::vector<Values> values;               ///< one for each of kLensModes
};

/// The arrays of the lens, in the order of the panel's choice.
inline constexpr std::array<const char*, 3> kLensModes = {"probability", "rank", "first"};

/// Throws TrajectoryError for a file that is no result of the lens.
std::shared_ptr<const LensData> read_lens(const std::string& path);
/// layer, step, value.
CsvTable lens_table(const LensData& lens, std::size_t mode);

}  // namespace blockscope
