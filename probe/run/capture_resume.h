// `capture --resume`: whether there is a run to go on with, whether it is this one, and its writer.
#pragma once

#include <string>

#include "decode_record/schema/trace_meta.h"
#include "decode_record/write/trace_writer.h"

namespace blockscope {

/// Where a run writes its trace, and what may be there already.
struct CaptureTarget {
  std::string output;
  bool force = false;
  bool resume = false;
};

/// Whether there is a run to go on with. An empty `.partial` is none: a writer gives its file that
/// name when the datasets are there, so nobody's rows are in it.
bool resumes(const CaptureTarget& target);

/// Removes such an empty file, with a note.
void discard_empty_partial(const CaptureTarget& target);

/// Everything that decides a token must be as in the run that was cut: a trace holds one run.
/// Throws UsageError naming the field.
void check_same_run(const std::string& trace, const TraceMeta& meta);

/// A new trace, or the one that was cut and what is in it, whose draft_cost stays. Waits a little
/// for a reader's lock.
/// Throws what check_same_run throws.
TraceWriter open_writer(const CaptureTarget& target, const TraceMeta& meta, ResumeState& state);

}  // namespace blockscope
