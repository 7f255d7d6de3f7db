// Rounds of drafted decoding, row by row of a trace: what the metric `draft` counts, and the viewer
// with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/pass/block_index.h"

namespace blockscope {

/// One round; spans are valid until the next one is read.
struct DraftRound {
  std::int64_t accepted = 0;  ///< drafted positions, from 1 on
  std::int64_t drafted = 0;   ///< positions 1 to this one
  std::int64_t inside = 0;  ///< what was drafted and belongs to the answer: positions 1 to `inside`
  std::span<const std::int32_t> drafted_rank_under_target,
      target_rank_under_draft;                           ///< [B], as in /draft; -1 too
  std::span<const float> draft_entropy, target_entropy;  ///< [B]

  std::int64_t length() const { return (accepted < inside ? accepted : inside) + 1; }
  /// Positions 1 to this one were reached: all before were accepted, and it is in the answer.
  std::int64_t reached() const { return accepted < inside ? accepted + 1 : inside; }
};

/// Reads ahead: rows are asked for in the order of the file.
class DraftRounds {
 public:
  explicit DraftRounds(const TraceReader& trace);
  /// Throws CorruptTrace for a row that is not a draft's pass.
  DraftRound at(const StepRef& step);

 private:
  void load(std::int64_t row);
  std::int64_t end_of(std::int64_t sequence);

  const TraceReader& trace_;
  std::size_t block_length_;
  std::int64_t first_ = 0, count_ = 0;  // rows in memory
  std::vector<std::int32_t> valid_, accepted_, drafted_rank_under_target_, target_rank_under_draft_;
  std::vector<float> draft_entropy_, target_entropy_;
  std::vector<std::int64_t> ends_;  // by sequence: position behind the answer; -1: not read
};

/// A name without the numbers at its end: "test-needle-256-7-000003" -> "test-needle".
std::string task_of(const std::string& name);

}  // namespace blockscope
