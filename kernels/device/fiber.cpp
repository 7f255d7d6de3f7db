#include "kernels/device/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "kernels/device/race_detection.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// void blockscope_switch_stack(void** save, void* load): saves the registers that a call must keep
// on the old stack, and loads them from the new one.
asm(R"(
.text
.globl blockscope_switch_stack
.type blockscope_switch_stack, @function
blockscope_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size blockscope_switch_stack, .-blockscope_switch_stack
)");
extern "C" void blockscope_switch_stack(void** save, void* load);
#endif

namespace blockscope::emulated {
namespace {

// Only touched pages use memory. AddressSanitizer's frames are several times larger.
constexpr std::size_t kStackBytes = 512 * 1024;

thread_local Fiber* starting = nullptr;

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<char*>(memory);
#if defined(BLOCKSCOPE_FIND_RACES)
  thread_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(BLOCKSCOPE_FIND_RACES)
  __tsan_destroy_fiber(thread_);
#endif
  munmap(stack_, kStackBytes);
}

void Fiber::reset(void (*entry)()) {
  entry_ = entry;
  fake_stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);  // left by a call that never ended
#endif
#if defined(__x86_64__)
  // At the first instruction of a function, the stack pointer is 8 off a multiple of 16.
  auto** top = reinterpret_cast<void**>(stack_ + kStackBytes) - 2;
  *top = reinterpret_cast<void*>(&Fiber::enter);
  pointer_ = top - 6;
  for (int i = 1; i <= 6; ++i) top[-i] = nullptr;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
#endif
}

void Fiber::enter() {
  Fiber* self = starting;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_, &self->scheduler_stack_size_);
#endif
  self->entry_();
}

void Fiber::resume() {
  starting = this;
#if defined(BLOCKSCOPE_FIND_RACES)
  scheduler_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, stack_, kStackBytes);
#endif
#if defined(__x86_64__)
  blockscope_switch_stack(&scheduler_, pointer_);
#else
  swapcontext(&scheduler_, &context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::yield() {
#if defined(BLOCKSCOPE_FIND_RACES)
  __tsan_switch_to_fiber(scheduler_thread_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, scheduler_stack_, scheduler_stack_size_);
#endif
#if defined(__x86_64__)
  blockscope_switch_stack(&pointer_, scheduler_);
#else
  swapcontext(&context_, &scheduler_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &scheduler_stack_, &scheduler_stack_size_);
#endif
}

}  // namespace blockscope::emulated
