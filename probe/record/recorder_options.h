// What a trace is to hold: settled before the first pass.
#pragma once

#include <cstdint>
#include <set>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Which rows carry arrays; empty sets let everything through.
struct RecordFilter {
  std::set<int64_t> steps;      // denoising steps, from 1
  std::set<int64_t> blocks;     // absolute block indices
  std::set<int64_t> sequences;  // sequences of the run
};

inline bool allows(const std::set<int64_t>& filter, int64_t value) {
  return filter.empty() || filter.count(value) > 0;
}

struct RecorderOptions {
  TraceMeta meta;  // level, layers, heads, set size, normaliser, dtype
  RecordFilter filter;
  bool every_prediction = true;  // also of positions that are decided already; else -1 and NaN
  bool exact_known = true;  // the policy is exact, or --shadow computes the exact values beside it
  bool autoregressive = false;
};

}  // namespace blockscope
