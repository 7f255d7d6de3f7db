// Orders heads for reuse by what freezing them does to the predictions, instead of by how similar
// their outputs are.
#pragma once

#include <string>

#include "analysis/calibration/calibration.h"

namespace blockscope {

/// Replaces the similarities of `sums` by ranks of the measured effect: 1 for the head whose frozen
/// external pair changes the predictions least (in KL), 0 for the head that changes them most,
/// evenly spaced, equal for equal effects. A gamma then chooses by effect; savings and errors stay
/// predicted from the traces. `path`: the CSV of `blockscope study knockout`; its rows with `what`
/// = "frozen" count. Throws CalibrationError for a file without a row for every head of the model.
void order_by_effect(const std::string& path, CalibrationSums& sums);

}  // namespace blockscope
