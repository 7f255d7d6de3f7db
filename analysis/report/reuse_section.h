// The report's section on reuse: what FlashBlock's two thresholds would save on these traces, and
// at what error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/pass/step_pass.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {

struct ReuseResults {
  std::vector<ReuseCurve> curves;  ///< tau 2, 3, 4
  std::string finding;             ///< one sentence; empty: nothing to say
  std::string missing;             ///< why there is none; empty: there is
};

/// One more pass over the traces. Never throws for a trace that lacks what calibration needs.
ReuseResults predict_reuse(const TraceGroup& traces, const PassOptions& options);

}  // namespace blockscope
