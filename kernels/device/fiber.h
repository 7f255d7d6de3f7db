// Stacks to switch between: one for each emulated thread. x86-64 by 15 lines of assembly, elsewhere
// by ucontext; AddressSanitizer is told of every switch.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace blockscope::emulated {

// One stack and where its owner stands. The context that calls resume() first is the scheduler's.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares a fresh call of `entry` on this stack, whatever was left there; it must not return but
  // end with a last yield().
  void reset(void (*entry)());
  // From the scheduler: runs this fiber until it yields.
  void resume();
  // From the fiber: back to the scheduler.
  void yield();

 private:
  static void enter();  // the first function on a stack

  char* stack_ = nullptr;
  void (*entry_)() = nullptr;
#if defined(__x86_64__)
  void* pointer_ = nullptr;    // the fiber's stack pointer while it does not run
  void* scheduler_ = nullptr;  // the scheduler's while it does
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
