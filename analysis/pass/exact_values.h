// Which datasets hold exact values. Under a reuse or sparse policy /attention/* is what was used,
// which may be old or partial; similarity, recall and calibration read exact values only.
#pragma once

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// Datasets of the exact external part: /attention/* of an `exact` run, /shadow/* otherwise.
struct ExactFields {
  Field external = Field::attention_external;
  Field lse_external = Field::attention_lse_external;
};

/// Throws TraceError when the trace was captured under another policy without shadow values, naming
/// the policy, with the advice to capture with `--policy exact` or `--shadow`.
ExactFields exact_fields(const TraceInfo& trace);
inline ExactFields exact_fields(const TraceReader& trace) { return exact_fields(trace.info()); }

/// Throws TraceError naming the metric, the missing dataset and the first --record level that has
/// it.
void require_field(const TraceReader& trace, Field field, const std::string& metric);

}  // namespace blockscope
