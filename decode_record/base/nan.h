// The number that stands where nothing was measured.
#pragma once

#include <limits>

namespace blockscope {

/// As a double too.
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace blockscope
