// Buffers for arrays between the file and the metrics. They are reused, because fresh memory costs
// a page fault per 4 KiB, as much as reading the bytes. Internal to analysis.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace blockscope {

/// Uninitialised bytes, aligned for every instruction set. The last owner returns them to the pool.
struct PooledBytes {
  std::shared_ptr<std::byte> data;
  std::size_t size = 0;
  std::span<std::byte> span() const { return {data.get(), size}; }
};

class BufferPool {
 public:
  BufferPool();
  /// Taking and releasing are thread-safe. Buffers may outlive the pool.
  PooledBytes take(std::size_t size);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace blockscope
