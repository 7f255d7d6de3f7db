#include "decode_record/hdf5/library_lock.h"

#include <atomic>

namespace blockscope {
namespace {

std::atomic<std::recursive_mutex*>& lock_in_use() {
  // Never deleted, because traces may be closed when the process ends.
  static std::atomic<std::recursive_mutex*> lock{new std::recursive_mutex};
  return lock;
}

}  // namespace

std::recursive_mutex& library_lock() { return *lock_in_use().load(std::memory_order_relaxed); }

void share_library_lock(std::recursive_mutex& lock) { lock_in_use() = &lock; }

}  // namespace blockscope
