// Describes the emulator to ThreadSanitizer. Every lane is a separate fiber. A lane may read
// another lane's writes only after __syncthreads or, in a warp, __syncwarp. Nothing else orders
// lanes, although they run one after another. So a missing barrier is found with every schedule,
// even if the result is right by chance. For this, kernels are compiled with -fsanitize=thread. The
// emulator is compiled with BLOCKSCOPE_FIND_RACES instead, because its own switches and tables
// would order everything. In other builds, these functions do nothing.
#pragma once

#if defined(BLOCKSCOPE_FIND_RACES)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_read16(void* address);
void __tsan_write16(void* address);
}
#endif

namespace blockscope::emulated::races {

#if defined(BLOCKSCOPE_FIND_RACES)
inline void release(void* token) { __tsan_release(token); }
inline void acquire(void* token) { __tsan_acquire(token); }
inline void reads_16(const void* address) { __tsan_read16(const_cast<void*>(address)); }
inline void writes_16(void* address) { __tsan_write16(address); }
/// While one lives, ThreadSanitizer ignores the calling fiber's accesses, such as the common work
/// of a warp.
struct Ignored {
  Ignored() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Ignored() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};
#else
inline void release(void*) {}
inline void acquire(void*) {}
inline void reads_16(const void*) {}
inline void writes_16(void*) {}
struct Ignored {
  Ignored() {}
};
#endif

}  // namespace blockscope::emulated::races
