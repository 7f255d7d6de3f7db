// Checks that the rows of two runs have the same datasets, as a resume and a merge need.
#pragma once

#include <string>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Throws UsageError that names the first differing field that affects datasets. `wanted` is the
/// meta of a run that would resume `path`, or of the trace `other` that `path` is merged with.
void check_same_layout(const TraceMeta& file, const TraceMeta& wanted, const std::string& path,
                       const std::string& other = "");

}  // namespace blockscope
