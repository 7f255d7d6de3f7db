// `capture --resume`: checks whether there is a run to continue and whether it is this run, and
// opens its writer.
#pragma once

#include <string>

#include "decode_record/schema/trace_meta.h"
#include "decode_record/write/trace_writer.h"

namespace blockscope {

/// Where a run writes its trace, and what to do with an existing file.
struct CaptureTarget {
  std::string output;
  bool force = false;
  bool resume = false;
};

/// Whether there is a run to continue. An empty `.partial` file is no run: a writer gives its file
/// this name only after it has made the datasets.
bool resumes(const CaptureTarget& target);

/// Removes an empty `.partial` file, with a note.
void discard_empty_partial(const CaptureTarget& target);

/// Everything that decides a token must be as in the run that was cut off, because a trace holds
/// one run. Throws a UsageError that names the field.
void check_same_run(const std::string& trace, const TraceMeta& meta);

/// Opens a new trace, or continues the one that was cut off; `state` gets its content, and its
/// draft_cost stays. Waits a few seconds for a reader's lock. Throws what check_same_run throws.
TraceWriter open_writer(const CaptureTarget& target, const TraceMeta& meta, ResumeState& state);

}  // namespace blockscope
