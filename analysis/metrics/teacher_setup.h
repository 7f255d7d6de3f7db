// What the comparison of two implementations needs to know before the first row: the tolerance, and
// whether the traces are of one model. Internal to that comparison.
#pragma once

#include <string>

#include "analysis/metrics/teacher_comparison.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

struct Tolerance {
  double value = 0.0;
  std::string reason;
};

/// The given one, or one for the element types in which the traces were computed and stored.
Tolerance tolerance_of(const TraceMeta& a, const TraceMeta& b, const TeacherOptions& options);
/// Throws UsageError unless the models have the same shape, as far as both traces know it.
void require_one_model(const TraceReader& a, const TraceReader& b);

}  // namespace blockscope
