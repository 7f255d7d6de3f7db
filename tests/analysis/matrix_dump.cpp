// Prints a similarity matrix as JSON rows, for the Python oracles:
//   matrix_dump TRACE token DATASET ROW_A ROW_B LAYER_SLOT HEAD_SLOT
//   matrix_dump TRACE step DATASET SEQUENCE BLOCK LAYER_SLOT HEAD_SLOT
// HEAD_SLOT -1: all heads. NaN is null.
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/metrics/token_similarity.h"

namespace blockscope {
namespace {

Field field_of(const std::string& path) {
  for (const DatasetSpec& spec : kDatasets) {
    if (spec.path == path) return spec.field;
  }
  throw UsageError("matrix_dump: no dataset " + path);
}

SimilarityMatrix matrix(const TraceReader& trace, const std::vector<std::string>& words) {
  const Field field = field_of(words.at(2));
  const std::int64_t first = std::stoll(words.at(3));
  const std::int64_t second = std::stoll(words.at(4));
  const auto layer = static_cast<std::size_t>(std::stoull(words.at(5)));
  std::optional<std::size_t> head;
  if (words.at(6) != "-1") head = std::stoull(words.at(6));
  if (words.at(1) == "token") return token_similarity(trace, field, first, second, layer, head);
  for (const BlockSteps& block : list_blocks(trace)) {
    if (block.sequence == first && block.block == second) {
      return step_similarity(trace, field, block, layer, head);
    }
  }
  throw UsageError("matrix_dump: no such block");
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const blockscope::TraceReader trace(words.at(0));
    const blockscope::SimilarityMatrix result = blockscope::matrix(trace, words);
    nlohmann::json rows = nlohmann::json::array();
    for (std::size_t i = 0; i < result.rows; ++i) {
      nlohmann::json row = nlohmann::json::array();
      for (std::size_t j = 0; j < result.columns; ++j) {
        const float value = result.values[i * result.columns + j];
        row.push_back(std::isnan(value) ? nlohmann::json() : nlohmann::json(double{value}));
      }
      rows.push_back(std::move(row));
    }
    std::cout << rows.dump() << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
