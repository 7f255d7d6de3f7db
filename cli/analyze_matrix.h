// `blockscope analyze --matrix`: its flags as a request. Internal to the command's files.
#pragma once

#include "analysis/metrics/similarity_matrix.h"
#include "cli/analyze_flags.h"

namespace blockscope {

/// Which steps, layer and head: --row-a and --row-b, or --sequence, --block and --step (two steps,
/// or one and the step after it), --layer and --head. Throws UsageError where these name more than
/// one element, or one of two rows.
MatrixRequest matrix_request(const AnalyzeFlags& flags, const TraceShape& shape);

}  // namespace blockscope
