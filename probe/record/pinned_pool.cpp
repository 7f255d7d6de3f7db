#include "probe/record/pinned_pool.h"

#include <ATen/ATen.h>

#include <bit>
#include <utility>

namespace blockscope {

at::Tensor PinnedPool::take(at::IntArrayRef sizes, at::ScalarType type) {
  const auto options = at::TensorOptions(type);
  const auto bytes = static_cast<uint64_t>(c10::multiply_integers(sizes)) * at::elementSize(type);
  // There are only few sizes, so a smaller batch can reuse the buffers of a larger one.
  constexpr uint64_t kLeast = 4096;
  const auto size = static_cast<int64_t>(std::bit_ceil(std::max(bytes, kLeast)));
  at::Tensor buffer = free_buffer(size);
  if (!buffer.defined()) {
    // Outside the lock: the allocator has its own lock, and may return tensors while it holds it.
    buffer = at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(true));
    const std::lock_guard lock(mutex_);
    bytes_ += size;
  }
  void* const data = buffer.mutable_data_ptr();
  const auto release = [pool = shared_from_this(), buffer](void*) { pool->give_back(buffer); };
  return at::from_blob(data, sizes, release, options);
}

int64_t PinnedPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

at::Tensor PinnedPool::free_buffer(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor>& buffers = free_[bytes];
  if (buffers.empty()) return {};
  at::Tensor buffer = std::move(buffers.back());
  buffers.pop_back();
  return buffer;
}

void PinnedPool::give_back(at::Tensor buffer) {
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor>& buffers = free_[buffer.numel()];
  buffers.push_back(std::move(buffer));
}

}  // namespace blockscope
