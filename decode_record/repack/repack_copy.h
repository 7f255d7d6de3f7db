// Copies the rows of repack's inputs, one file after the other, into its output. Internal to
// decode_record.
#pragma once

#include <memory>
#include <vector>

#include "decode_record/read/raw_trace.h"
#include "decode_record/repack/repack.h"
#include "decode_record/write/trace_file.h"

namespace blockscope {

using RawTraces = std::vector<std::unique_ptr<RawTrace>>;

/// Copies all growing datasets, with indices shifted by the earlier inputs. For a virtual output,
/// leaves out the datasets that it shows from its inputs. Counts rows, sequences and cut sequences
/// in the result.
RepackResult copy_traces(const RawTraces& traces, TraceFile& output, bool is_virtual,
                         const RepackOptions& options);

}  // namespace blockscope
