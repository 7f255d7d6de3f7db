// HDF5 is not thread-safe, and all modules of a process that link the same HDF5 share its state. So
// one lock guards every call: threads may write one trace while they read another. In Python,
// nothing waits for it while it holds Python's lock.
#pragma once

#include <mutex>

namespace blockscope {

/// The process's lock, if share_library_lock() gave one; else this module's own. Recursive, because
/// a function that holds it may call others that take it.
std::recursive_mutex& library_lock();
/// Takes the lock of another module. Call it before any trace is opened.
void share_library_lock(std::recursive_mutex& lock);

/// Holds the lock. Every function of h5.h that calls HDF5 begins with one.
class LibraryGuard {
 public:
  LibraryGuard() : lock_(library_lock()) {}

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace blockscope
