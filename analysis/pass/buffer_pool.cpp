#include "analysis/pass/buffer_pool.h"

#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace blockscope {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

class BufferPool::Impl {
 public:
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    for (auto& [size, list] : free_) {
      for (std::byte* data : list) ::operator delete(data, kAlignment);
    }
  }

  std::byte* take(std::size_t size) {
    {
      const std::scoped_lock lock(mutex_);
      std::vector<std::byte*>& list = free_[size];
      if (!list.empty()) {  // the last used one is still in the CPU's cache
        std::byte* data = list.back();
        list.pop_back();
        return data;
      }
    }
    return static_cast<std::byte*>(::operator new(size, kAlignment));
  }

  void give_back(std::byte* data, std::size_t size) {
    const std::scoped_lock lock(mutex_);
    free_[size].push_back(data);
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
};

BufferPool::BufferPool() : impl_(std::make_shared<Impl>()) {}

PooledBytes BufferPool::take(std::size_t size) {
  std::byte* data = impl_->take(size);
  const auto give_back = [pool = impl_, size](std::byte* bytes) { pool->give_back(bytes, size); };
  return PooledBytes{std::shared_ptr<std::byte>(data, give_back), size};
}

}  // namespace blockscope
