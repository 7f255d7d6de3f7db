// Host memory that a device can copy to while the host goes on. Taking it from the system costs as
// much as waiting for the device, so it is taken once and given out again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace blockscope {

/// Tensors over pinned memory, from any thread. Made with std::make_shared: tensors keep it alive.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  /// A contiguous tensor of the host whose values are not set. Its memory comes back when the last
  /// tensor over it is gone: nothing may be on its way there any more.
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
