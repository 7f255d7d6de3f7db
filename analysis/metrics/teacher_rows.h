// Pairs the denoising rows of two traces, and checks that paired rows had the same input. Internal
// to the comparison of two implementations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/metrics/teacher_comparison.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

struct TeacherRow {
  std::int64_t row = 0;
  std::int32_t sequence = 0, block = 0, block_start = 0, step = 0, context_length = 0;
  bool recorded = false;
};

struct TeacherPair {
  TeacherRow a, b;
  TeacherPlace place() const;
};

class TeacherRows {
 public:
  TeacherRows(const TraceReader& a, const TraceReader& b);

  /// In A's order.
  const std::vector<TeacherPair>& pairs() const { return pairs_; }
  std::int64_t sequences() const { return sequences_; }
  const std::vector<std::string>& notes() const { return notes_; }
  /// Prompts that differ, before any row.
  const std::optional<TeacherInputs>& prompts() const { return prompts_; }
  /// What the inputs of a pair differ in.
  std::optional<TeacherInputs> inputs(const TeacherPair& pair) const;

 private:
  std::string tokens_differ(const TeacherPair& pair) const;
  std::string drafts_differ(const TeacherPair& pair) const;

  const TraceReader& a_;
  const TraceReader& b_;
  std::vector<TeacherPair> pairs_;
  std::vector<std::int64_t> prompt_lengths_;  // by sequence of A
  std::int64_t sequences_ = 0;
  std::vector<std::string> notes_;
  std::optional<TeacherInputs> prompts_;
  bool fed_drafts_ = false;  // the rows are passes of a target over drafted tokens
};

}  // namespace blockscope
