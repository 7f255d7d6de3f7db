// The state of the Heatmap panel.
#pragma once

#include <cstdint>

namespace blockscope {

struct HeatmapState {
  int mode = 0;  ///< 0: token x token, 1: step x step, 2: top-k positions
  bool all_heads = true;
  std::int32_t to_step = 0;  ///< the step that is compared with the selected one; 0: the next one
};

}  // namespace blockscope
