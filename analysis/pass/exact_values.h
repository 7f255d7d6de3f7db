// Finds the datasets with exact values. Under a reuse or sparse policy, /attention/* has the values
// that the run used, which may be old or partial. Similarity, recall and calibration need exact
// ones.
#pragma once

#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// Datasets of the exact external part: /attention/* for an `exact` run, else /shadow/*.
struct ExactFields {
  Field external = Field::attention_external;
  Field lse_external = Field::attention_lse_external;
};

/// Throws TraceError if the trace was captured with another policy and without shadow values. The
/// message names the policy and advises `--policy exact` or `--shadow`.
ExactFields exact_fields(const TraceInfo& trace);
inline ExactFields exact_fields(const TraceReader& trace) { return exact_fields(trace.info()); }

/// The policy under which /attention/* is not exact, "quest" or "exact with interventions"; empty:
/// it is exact.
std::string inexact_policy(const TraceInfo& trace);

/// The arrays from which the exact attention output is merged, with their A_in and L_in: A_out,
/// L_out, A_in, L_in.
std::vector<Field> output_fields(const ExactFields& exact);
/// Their datasets, with commas between them.
std::string paths_of(const std::vector<Field>& fields);

/// Throws TraceError if the trace lacks the field. The message names the metric, the dataset and
/// the lowest --record level that has it.
void require_field(const TraceReader& trace, Field field, const std::string& metric);
/// Throws TraceError if the trace is of a continuous model.
void require_tokens(const TraceReader& trace, const std::string& metric);

}  // namespace blockscope
