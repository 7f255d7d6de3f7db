// The number that means "not measured".
#pragma once

#include <limits>

namespace blockscope {

/// Also used as a double.
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace blockscope
