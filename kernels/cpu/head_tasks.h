// Runs work per head on the threads of ATen.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace blockscope {

/// Runs function(i) for i in [0, count), each with about `elements` numbers of work. Several heads
/// share a task, because waking threads costs more than the heads of a small model.
template <typename Function>
void for_each_head(int64_t count, int64_t elements, const Function& function) {
  constexpr int64_t kElementsPerTask = 1 << 15;
  at::parallel_for(0, count,
                   std::max<int64_t>(kElementsPerTask / std::max<int64_t>(elements, 1), 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) function(i);
                   });
}

}  // namespace blockscope
