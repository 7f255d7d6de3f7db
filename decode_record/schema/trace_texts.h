// /model/json and /run/json, the two texts of a trace that say which model ran and how. Internal to
// decode_record.
#pragma once

#include <string>
#include <vector>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Throws CorruptTrace for a text that is not a JSON object, or that lacks a member of every trace
/// (in the run: `version`; in the model: `requested` or `imported_from`). Also throws if a member
/// that some command reads has another type than Blockscope writes. Messages begin with
/// "<path>:/run/json".
void check_trace_texts(const TraceMeta& meta, const std::string& path);

/// The names in /run/json of the files that a merged or repacked trace was made from.
std::vector<std::string> merged_files(const TraceMeta& meta);

}  // namespace blockscope
