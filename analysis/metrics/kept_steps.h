// What reuse rules would keep at every step of a trace, from its trajectory alone. Internal to
// analysis.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/pass/block_index.h"
#include "decode_record/schema/reuse_rule.h"

namespace blockscope {

/// The kept pair of each rule at the denoising steps of a trace.
class KeptSteps {
 public:
  explicit KeptSteps(std::vector<ReuseRule> rules) : rules_(std::move(rules)) {}

  /// Forgets the previous trace, and keeps a pointer to this one.
  void begin_trace(const TraceReader& trace);
  /// Adds the steps of a block, recorded or not. Inputs are those of /frames.
  void add_block(const BlockSteps& block);

  /// Steps since the pair was computed; 0: the rule reads at this step. The step's block must have
  /// been added.
  std::int64_t age(const StepRef& step, std::size_t rule) const;
  /// RowKind of each row of the step, [B].
  std::span<const std::uint8_t> kinds(const StepRef& step, std::size_t rule) const;

 private:
  std::size_t cell(const StepRef& step, std::size_t rule) const;

  std::vector<ReuseRule> rules_;
  const TraceReader* trace_ = nullptr;
  std::size_t block_length_ = 0;
  std::vector<std::int64_t> place_;  // [row of the trace], -1: none
  std::vector<std::int32_t> ages_;   // [place, rule]
  std::vector<std::uint8_t> kinds_;  // [place, rule, B]
};

}  // namespace blockscope
