// Compares two traces sequence by sequence, without aborted ones: a run that was cut and resumed
// has its rows in other places than an uncut run. Internal to decode_record.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/compare/compare_traces.h"
#include "decode_record/read/raw_trace.h"

namespace blockscope {

/// A name, answer, metric or text; empty if its range is outside the bytes.
std::string sequence_text(const RawTrace& trace, Field start, Field length, std::int64_t sequence);

/// Sequences are matched by name and prompt. Rows, elements and texts are compared in the order of
/// their sequence. Numbers of sequences, rows, passes and elements are not compared, because they
/// only say where things are. The caller handles datasets that one trace lacks.
class AlignedComparison {
 public:
  AlignedComparison(const RawTrace& a, const RawTrace& b, const CompareOptions& options);

  /// Numbers that say where things are.
  static bool is_place(Field field);
  /// Compares one dataset. Its rows must have the same shape in both traces.
  void run(Field field, DatasetDifference& result) const;
  /// What can't be matched: sequences that only one trace has, and missing rows of a sequence.
  const std::vector<DatasetDifference>& unmatched() const { return unmatched_; }
  /// Compares names, answers, metrics and texts.
  DatasetDifference texts() const;

 private:
  /// Elements [a, a + count) of the first trace are [b, b + count) of the second.
  struct Part {
    std::int64_t a = 0;
    std::int64_t b = 0;
    std::int64_t count = 0;
  };
  using Parts = std::vector<Part>;
  /// A sequence's rows and keyframes.
  struct Owned {
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> keyframes;
  };
  void match_sequences();
  void match_rows();
  void match_ranges(Axis axis, Field end_field, Axis owner);
  void match_prompts();
  void add(Axis axis, Part part);
  Parts& parts(Axis axis) { return parts_[static_cast<std::size_t>(axis)]; }
  const Parts& parts(Axis axis) const { return parts_[static_cast<std::size_t>(axis)]; }
  void problem(const std::string& path, const std::string& what);

  const RawTrace& a_;
  const RawTrace& b_;
  const CompareOptions& options_;
  std::vector<std::pair<std::int64_t, std::int64_t>> sequences_;
  std::array<Parts, static_cast<std::size_t>(Axis::count)> parts_;
  std::vector<DatasetDifference> unmatched_;
};

}  // namespace blockscope
