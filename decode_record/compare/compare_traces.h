// Compares two traces dataset by dataset: for `blockscope diff`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct CompareOptions {
  double absolute = 0.0;  // floats a, b are equal if |a - b| <= absolute + relative * |b|
  double relative = 0.0;
  bool ignore_timing = false;   // leaves out /steps/pass_time_ns, /draft/cost
  bool ignore_aborted = false;  // compares only sequences that were not aborted, by name and prompt
};

struct DatasetDifference {
  std::string path;
  std::string problem;           // "" if compared element by element; else why it wasn't
  std::int64_t elements = 0;     // compared
  std::int64_t different = 0;    // outside the tolerance; NaN equals NaN, infinities by sign
  double largest = 0.0;          // |a - b| over all finite pairs, within tolerance or not
  std::vector<std::int64_t> at;  // index of the first element that differs
  bool equal() const { return problem.empty() && different == 0; }
};

struct TraceDifference {
  std::vector<DatasetDifference> datasets;
  bool equal = true;
  std::int64_t aborted_a = 0;  // sequences of each trace, left out or not
  std::int64_t aborted_b = 0;
};

/// Compares everything that was decoded or recorded, but not what ran (/model/json, /run/json,
/// /run/complete, /tokenizer). Integers and bytes must be equal, floats within tolerance. With
/// `ignore_aborted`, sequences are matched by name and prompt, and rows by their order in the
/// sequence. Numbers of sequences, rows, passes and elements are then not compared. Needs a few MB
/// of memory, whatever the size of the arrays. Throws TraceError.
TraceDifference compare_traces(const std::string& a, const std::string& b,
                               const CompareOptions& options);

}  // namespace blockscope
