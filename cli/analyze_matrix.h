// `blockscope analyze --matrix`: its flags as a request. Internal to the command's files.
#pragma once

#include "analysis/metrics/similarity_matrix.h"
#include "cli/analyze_flags.h"

namespace blockscope {

/// The steps come from --row-a and --row-b, or from --sequence, --block and --step (two steps, or
/// one and the step after it). Throws UsageError if --layer or --head names more than one element,
/// or if only one of the two rows is given.
MatrixRequest matrix_request(const AnalyzeFlags& flags, const TraceShape& shape);

}  // namespace blockscope
