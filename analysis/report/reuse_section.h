// The data of the report's section on reuse: predicted savings and errors of FlashBlock's two
// thresholds on these traces.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/pass/step_pass.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {

struct ReuseResults {
  std::vector<ReuseCurve> curves;  ///< tau 2, 3, 4
  std::string finding;             ///< one finding; empty if there is none
  std::string missing;             ///< why there are no curves; empty if there are
};

/// Takes one more pass over the traces. Sets `missing`, and never throws, for a trace that lacks
/// what calibration needs.
ReuseResults predict_reuse(const TraceGroup& traces, const PassOptions& options);

}  // namespace blockscope
