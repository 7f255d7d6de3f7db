// The k largest of N scores per row, in memory: what makes a top-k set at analysis time (MAGE
// eq. 2), with the rules of /sets/topk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

struct TopKSets {
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::vector<std::int32_t> index;  ///< [rows, k], by falling score; -1 where a row has fewer
  std::int64_t not_a_number = 0;    ///< scores that were NaN; they are in no set
};

/// scores: [rows, n] row-major. Ties, also between +0 and -0, go to the lower position. Rows are
/// split over `threads` threads (0: one per core). Throws UsageError unless rows * n scores are
/// given, k >= 1 and n < 2^31.
TopKSets top_k(std::span<const float> scores, std::int64_t rows, std::int64_t n, std::int64_t k,
               std::size_t threads = 0);

}  // namespace blockscope
