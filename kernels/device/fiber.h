// Switches between stacks, one per emulated thread. On x86-64 it uses 15 lines of assembly, on
// other machines ucontext. It reports every switch to AddressSanitizer.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace blockscope::emulated {

// One stack and its execution state. The context that calls resume() is the scheduler.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares a new call of `entry` on this stack and drops its old content. `entry` must not
  // return; it must end with a last yield().
  void reset(void (*entry)());
  // Called by the scheduler: runs this fiber until it yields.
  void resume();
  // Called by the fiber: returns to the scheduler.
  void yield();

 private:
  static void enter();  // the first function on a stack

  char* stack_ = nullptr;
  void (*entry_)() = nullptr;
#if defined(__x86_64__)
  void* pointer_ = nullptr;    // the fiber's stack pointer while it does not run
  void* scheduler_ = nullptr;  // the scheduler's stack pointer while the fiber runs
#else
  ucontext_t context_{};
  ucontext_t scheduler_{};
#endif
#if defined(BLOCKSCOPE_FIND_RACES)
  void* thread_ = nullptr;  // ThreadSanitizer's
  void* scheduler_thread_ = nullptr;
#endif
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_size_ = 0;
};

}  // namespace blockscope::emulated
