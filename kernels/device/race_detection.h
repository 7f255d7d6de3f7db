// What the emulator tells ThreadSanitizer: every lane is a fiber of its own, and what one wrote
// another may read behind __syncthreads or, in a warp, __syncwarp. Nothing else orders lanes,
// though they run one after another: so a missing barrier is found whatever the schedule, also
// where the result is right by luck. Kernels are compiled with -fsanitize=thread then; the emulator
// itself is not, as its own switches and tables would order everything, but with
// BLOCKSCOPE_FIND_RACES. Elsewhere all of this is nothing.
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
/// While one lives, the calling fiber's accesses are nobody's: what a warp does together.
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
