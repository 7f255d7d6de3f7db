// Reads the rounds of drafted decoding, row by row, for the metric `draft` and the viewer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/pass/block_index.h"

namespace blockscope {

/// One round. Its spans are valid until the next round is read.
struct DraftRound {
  std::int64_t accepted = 0;  ///< accepted drafted positions: 1 to `accepted`
  std::int64_t drafted = 0;   ///< drafted positions: 1 to `drafted`
  std::int64_t inside = 0;    ///< drafted positions inside the answer: 1 to `inside`
  std::span<const std::int32_t> drafted_rank_under_target,
      target_rank_under_draft;                           ///< [B], from /draft, including -1
  std::span<const float> draft_entropy, target_entropy;  ///< [B]
  std::span<const std::int32_t> token, target_token;     ///< [B], the draft's and the target's
  std::span<const float> confidence;                     ///< [B], of the drafted tokens
  /// [B], from /draft, including -1; empty for a draft without a selector
  std::span<const std::int32_t> candidate_chosen, candidate_target;

  std::int64_t length() const { return (accepted < inside ? accepted : inside) + 1; }
  /// Positions 1 to reached() were reached: inside the answer, with every position before accepted.
  std::int64_t reached() const { return accepted < inside ? accepted + 1 : inside; }
};

/// Reads ahead, so call at() in the order of the file.
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
  std::vector<std::int32_t> token_, target_token_, candidate_chosen_, candidate_target_;
  std::vector<float> draft_entropy_, target_entropy_, confidence_;
  std::vector<std::int64_t> ends_;  // by sequence: position after the answer; -1: not read
};

/// A name without the numbers at its end: "test-needle-256-7-000003" -> "test-needle".
std::string task_of(const std::string& name);

}  // namespace blockscope
