// Memory that tensors free stays with the process: docs/design/0012-packed-weights.md.
#pragma once

#include <malloc.h>

#include <cstdlib>

namespace blockscope {

/// Every pass allocates tensors of the same sizes. The system would zero returned memory page by
/// page before the next pass (5 to 10 % of a pass over 512 positions). A user's own
/// MALLOC_MMAP_THRESHOLD_ wins.
inline void keep_freed_memory() {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest value that glibc accepts
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
}

}  // namespace blockscope
