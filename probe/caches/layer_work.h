// What a pass of a bidirectional model computes at a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iterator>
#include <vector>

namespace blockscope {

/// Rows of a canvas by their absolute positions, ascending. The list of rows that a device chose
/// stays on the device: it would be idle while the host waits for a copy.
struct CanvasRows {
  std::vector<int64_t> known;
  at::Tensor chosen = {};  // [C] int64 on a device, in addition to `known`; undefined: none

  int64_t count() const { return std::ssize(known) + (chosen.defined() ? chosen.numel() : 0); }
};

/// What a cache computed at one layer of a pass.
struct LayerWork {
  std::vector<int64_t> queries;  // absolute positions, ascending, whose query, attention and FFN
                                 // the method computes; includes last-layer rows that are skipped
                                 // because nobody reads their output
  std::vector<int64_t> keys;     // positions whose key was written
  std::vector<int64_t> values;   // positions whose value was written
  at::Tensor chosen = {};        // CanvasRows::chosen: more positions of queries and keys

  int64_t num_queries() const {
    return std::ssize(queries) + (chosen.defined() ? chosen.numel() : 0);
  }
};

}  // namespace blockscope
