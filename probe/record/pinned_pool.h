// Pinned host memory: a device can copy to it while the host continues. Allocating it costs as much
// as waiting for the device, so buffers are kept and reused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace blockscope {

/// Gives out tensors over pinned memory, to any thread. Create it with std::make_shared, because
/// its tensors keep it alive.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  /// A contiguous, uninitialised host tensor. Its memory returns to the pool when the last tensor
  /// over it is gone; by then, copies into it must have ended.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType type);

  /// Bytes taken from the system so far.
  int64_t bytes() const;

 private:
  at::Tensor free_buffer(int64_t bytes);
  void give_back(at::Tensor buffer);

  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<at::Tensor>> free_;  // by size, a power of two
  int64_t bytes_ = 0;
};

}  // namespace blockscope
