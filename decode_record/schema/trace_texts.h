// /model/json and /run/json, the two texts of a trace that say which model ran, and how. Internal
// to decode_record.
#pragma once

#include <string>
#include <vector>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Throws CorruptTrace for a text that is no JSON object, lacks a member that every trace has (of
/// the run `version`; of the model `requested` or `imported_from`), or where a member that is read
/// somewhere has another type than Blockscope gives it. Messages begin with "<path>:/run/json".
void check_trace_texts(const TraceMeta& meta, const std::string& path);

/// The names of the files that a merged or repacked trace was made of, as /run/json tells them.
std::vector<std::string> merged_files(const TraceMeta& meta);

}  // namespace blockscope
