// Which heads may reuse at which steps of a block, and how wrong the rows of a step get if they do.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "decode_record/schema/reuse_rule.h"

namespace blockscope {

template <typename T>
using HeadMatrix = std::vector<std::vector<T>>;  ///< [layers][heads]

/// Ranges of the denoising steps of a block, by their first steps: rising, from 1. The last range
/// has no end.
struct StepRanges {
  std::vector<std::int64_t> first{1};

  std::size_t size() const { return first.size(); }
  /// The range of this step, which counts from 1.
  std::size_t of(std::int64_t step) const {
    const auto after = std::upper_bound(first.begin() + 1, first.end(), step);
    return static_cast<std::size_t>(after - first.begin()) - 1;
  }
  bool operator==(const StepRanges&) const = default;
};

/// The heads that may reuse, for each range of steps.
struct ReuseMasks {
  StepRanges ranges;
  std::vector<HeadMatrix<bool>> heads;  ///< [ranges][layers][heads]; empty: every head may

  const HeadMatrix<bool>& at(std::int64_t step) const { return heads[ranges.of(step)]; }
  bool operator==(const ReuseMasks&) const = default;
};

/// Squared relative errors of the rows of an attention output that reuses, by RowKind: sum e^2 /
/// sum ref^2 over all heads, in the heads that reuse. NaN: not measured.
using RowErrors = std::array<double, kRowKinds.size()>;

/// In place of tau: a step that is not its block's first reuses while the predicted relative L2
/// error of its attention output is below `bound`. Predicted is sqrt(sum of rows * RowErrors / B).
/// A kind of rows that was not measured can't be predicted, so such a step reads.
struct ErrorBound {
  double bound = 0.0;
  StepRanges ranges;
  std::vector<RowErrors> errors;  ///< [ranges]

  /// Rows of the block: masks, tokens that were decided since the prefix was read, and all.
  double predicted(std::int64_t step, std::int64_t masks, std::int64_t decided,
                   std::int64_t rows) const {
    const RowErrors& of = errors[ranges.of(step)];
    const std::array<std::int64_t, kRowKinds.size()> counts{masks, rows - masks - decided, decided};
    double squared = 0.0;
    for (std::size_t kind = 0; kind < counts.size(); ++kind) {
      if (counts[kind] > 0) squared += static_cast<double>(counts[kind]) * of[kind];
    }
    return std::sqrt(squared / static_cast<double>(rows));
  }
  /// masked, changed: [B], rows that are masks, and rows whose input changed since the prefix was
  /// read.
  bool reuses(std::int64_t step, const std::vector<bool>& masked,
              const std::vector<bool>& changed) const {
    std::int64_t masks = 0;
    std::int64_t decided = 0;
    for (std::size_t i = 0; i < masked.size(); ++i) {
      masks += masked[i] ? 1 : 0;
      decided += !masked[i] && changed[i] ? 1 : 0;
    }
    return step > 1 && predicted(step, masks, decided, std::ssize(masked)) < bound;
  }
};

}  // namespace blockscope
