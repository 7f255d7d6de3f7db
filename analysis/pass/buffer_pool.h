// Buffers for arrays on their way from the file to the metrics. They are recycled: fresh memory
// costs a page fault per 4 KiB, as much as reading the bytes. Internal to analysis.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace blockscope {

/// Uninitialised bytes, aligned for every instruction set; shared, back in the pool when the last
/// owner lets go.
struct PooledBytes {
  std::shared_ptr<std::byte> data;
  std::size_t size = 0;
  std::span<std::byte> span() const { return {data.get(), size}; }
};

class BufferPool {
 public:
  BufferPool();
  /// Thread-safe, as is letting go. Buffers may outlive the pool.
  PooledBytes take(std::size_t size);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace blockscope
