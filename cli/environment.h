// Reads the environment variables the runtime honours.
#pragma once

#include "probe/environment.h"

namespace blockscope {

/// Throws UsageError when a launcher's rank variables are not numbers or contradict each other.
Environment read_environment();

}  // namespace blockscope
