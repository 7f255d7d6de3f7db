// What a pass of a bidirectional model computes at a layer.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// What a cache computed at one layer of a pass.
struct LayerWork {
  std::vector<int64_t> queries;  // absolute positions, ascending, whose query, attention and FFN
                                 // the method computes; at the last layer also those whose output
                                 // nobody reads, which are spared
  std::vector<int64_t> keys;    // positions whose key was written
  std::vector<int64_t> values;  // positions whose value was written
};

}  // namespace blockscope
