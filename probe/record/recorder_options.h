// What a trace will contain, decided before the first pass.
#pragma once

#include <cstdint>
#include <set>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// The rows that have arrays; an empty set allows everything.
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
  std::set<int64_t> map_steps;   // denoising steps of /map, from 1; empty: all
  bool every_prediction = true;  // also for decided positions; else they have -1 and NaN
  bool exact_known = true;       // exact values are known: the policy is exact, or --shadow is on
  bool autoregressive = false;
};

}  // namespace blockscope
