// Whether the rows of two runs have the same datasets: what a resumed run and a merge must share.
#pragma once

#include <string>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Throws UsageError naming the first field that differs and decides about datasets. `wanted` is
/// that of a run which would resume `path`, or that of the trace `other`, which `path` is merged
/// with.
void check_same_layout(const TraceMeta& file, const TraceMeta& wanted, const std::string& path,
                       const std::string& other = "");

}  // namespace blockscope
