// Similarity matrices between any two steps of a block, read on demand, for heatmaps (FlashBlock,
// arXiv 2602.05305, Fig. 1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/pass/block_index.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// Row-major [rows, columns]. NaN if a position does not exist or a vector is zero.
struct SimilarityMatrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> values;
};

/// token x token: C_ij = cos(X_i^a, X_j^b), with i the position in the block at row `row_a`.
/// values[i * B + j] is C_ij (FlashBlock's Fig. 1 has columns i and rows j). X is any dataset with
/// a vector per block position: A_out, A_in, query, key, value, hidden. `head` is a slot of the
/// dataset's head axis; unset: heads concatenated (D * H channels), as in Fig. 1.
SimilarityMatrix token_similarity(const TraceReader& trace, Field field, std::int64_t row_a,
                                  std::int64_t row_b, std::size_t layer,
                                  std::optional<std::size_t> head);

/// step x step: mean of cos(X_i^s, X_i^s') over positions valid in both, per head. If `head` is
/// unset, the mean over heads. Steps that were not recorded give NaN rows and columns.
SimilarityMatrix step_similarity(const TraceReader& trace, Field field, const BlockSteps& block,
                                 std::size_t layer, std::optional<std::size_t> head);

}  // namespace blockscope
