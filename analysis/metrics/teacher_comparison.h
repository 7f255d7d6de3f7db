// Compares what two implementations of one model computed from the same tokens: the first step,
// layer, position and head where they differ beyond a tolerance. For `blockscope diff --teacher`.
//
// Rows are paired by sequence, block and step. Their inputs must be the same tokens; the comparison
// ends at the first input that differs. Only denoising rows have arrays, so only they are compared.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/metrics/teacher_quantities.h"

namespace blockscope {

struct TeacherOptions {
  /// Values are equal if |a - b| <= tolerance * range. Unset: by the traces' element types.
  std::optional<double> tolerance;
  /// Called with the rows done and all rows; returning false stops with InterruptedError.
  std::function<bool(std::int64_t done, std::int64_t total)> progress;
};

/// Where a value is. -1: the quantity has no such axis.
struct TeacherPlace {
  std::int64_t sequence_a = -1, sequence_b = -1, row_a = -1, row_b = -1;
  std::int64_t block = -1, step = -1;
  std::int64_t layer = -1;     ///< of the model
  std::int64_t position = -1;  ///< in the block
  std::int64_t head = -1;      ///< query head or KV head of the model
  std::int64_t channel = -1;
};

struct TeacherDifference {
  TeacherPlace place;
  double a = 0.0, b = 0.0;  ///< values, or tokens
  double relative = 0.0;  ///< |a - b| / range; for experts the gap, for tokens that of confidences
  std::vector<std::int32_t> experts_a, experts_b;  ///< ascending
};

/// One quantity, over all layers or in one.
struct TeacherCounts {
  std::int64_t elements = 0;   ///< compared; for experts: tokens
  std::int64_t different = 0;  ///< beyond the tolerance
  double largest = 0.0;        ///< |a - b|
  double largest_relative = 0.0;
  void add(const TeacherCounts& other);
};

struct TeacherResult {
  TeacherQuantity quantity{};
  std::string missing;  ///< why it was not compared; empty: it was
  TeacherCounts all;
  std::vector<TeacherCounts> by_layer;  ///< [shared layers]; empty for predictions
  std::optional<TeacherDifference> first;
};

/// Upper ends of the gaps, relative to the larger weight; a last bin has larger ones.
inline constexpr std::array<double, 5> kTieGaps{1e-6, 1e-4, 1e-3, 1e-2, 1e-1};

/// How near to a tie the experts of a layer's tokens were that differ. The gap of a token is the
/// largest difference of two experts' weights whose order the two traces disagree about.
struct ExpertGaps {
  std::int64_t tokens = 0, different = 0;
  std::int64_t swapped = 0;  ///< experts that only A chose
  std::array<std::int64_t, kTieGaps.size() + 1> gaps{};
  std::int64_t unknown = 0;  ///< tokens without recorded weights
  void add(const ExpertGaps& other);
};

/// The first inputs that are not the same. Nothing after them was compared.
struct TeacherInputs {
  TeacherPlace place;
  std::string what;  ///< "token at position 12: 5 in A, 7 in B"
};

struct TeacherComparison {
  std::string path_a, path_b;
  double tolerance = 0.0;
  std::string tolerance_reason;
  std::int64_t sequences = 0, rows = 0, recorded_rows = 0;  ///< paired; with arrays in both
  std::vector<std::int64_t> layers, heads;                  ///< of the model, recorded in both
  std::vector<TeacherResult> results;                       ///< every quantity, in computing order
  std::vector<ExpertGaps> experts;                          ///< [layers]; empty without experts
  std::optional<TeacherInputs> inputs;
  std::vector<std::string> notes;      ///< what only one trace has or does, one sentence each
  const TeacherResult* first() const;  ///< that with the first difference; nullptr: none
  bool equal() const { return !inputs && first() == nullptr; }
};

/// Throws UsageError for traces of models of other shapes, for rows that do not pair, and where no
/// quantity is in both; TraceError for a trace that can't be read. Needs memory for one layer of a
/// row of both, and 64 bytes for each row.
TeacherComparison compare_teacher(const std::string& a, const std::string& b,
                                  const TeacherOptions& options);

/// One JSON object; docs/interchange.md has its members.
std::string teacher_json(const TeacherComparison& found);
/// A line for each quantity and layer.
std::string teacher_csv(const TeacherComparison& found);
/// "sequence 0, block 1, step 2 (rows 5 and 7), layer 3, position 4, head 5".
std::string place_text(const TeacherPlace& place);
/// "1.25 in A, 1.5 in B: 0.0801 of the range", or the experts and their gap.
std::string values_text(const TeacherResult& result);

}  // namespace blockscope
