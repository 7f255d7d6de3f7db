// Executes device code on the CPU, so that machines without a GPU can test it. Thread blocks run
// one after another, with a fiber per thread. A seed decides which block, warp and lane runs next.
// A warp may run ahead of the others as far as barriers allow. Undefined behaviour of the hardware
// becomes visible:
// - shared memory is NaN at the start of every block, and addresses outside it are refused;
// - the target of copy_async_16 is NaN (poisoned for AddressSanitizer) until its thread has waited;
// - lanes of a warp at different instructions, and barriers that not every thread reaches, end the
//   run with a table of the waiting threads and their places.
// Blocks never overlap, so communication between blocks is only tested if it uses a second kernel.
// The emulator tests correctness; only its counters say something about speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

namespace blockscope::emulated {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// A mistake of a kernel, with the place of every thread.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How multiply_add rounds its sums: to nearest, or toward zero as tensor cores may.
enum class Rounding { kNearest, kTruncate };

struct Options {
  uint64_t seed = 1;
  Rounding rounding = Rounding::kNearest;
  int shared_limit = 227 * 1024;  // of a thread block; that of an H100
};

// Exact counts since the last reset.
struct Counters {
  int64_t copied_bytes = 0;     // read from global memory by copy_async_16
  int64_t bank_conflicts = 0;   // load_matrix_* with more than one row in a bank group
  int64_t matrix_products = 0;  // multiply_add calls of warps
  int64_t barriers = 0;         // __syncthreads calls of blocks
};

void set_options(const Options& options);
Counters& counters();
Rounding rounding();
int shared_limit();

// Runs `body` once for every thread of the grid. block.x must be a multiple of 32, y and z must be
// 1. Throws Fault.
void run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

// --- the parts of emulated_device.h; only for use inside run_grid

using WarpWork = void (*)(void* const* slots);  // slots of lanes 0..31

// Returns when all threads of the block have arrived.
void wait_for_block(const std::source_location& where);
// Returns when all 32 lanes have arrived and `work` has run once on their slots.
void wait_for_warp(const char* name, const std::source_location& where, void* slot, WarpWork work);
// Refuses a mask other than all lanes, because our kernels have no divergent warps.
void check_full(unsigned mask, const std::source_location& where);

char* dynamic_shared();
void copy_async_16(void* to, const void* from, int bytes = 16,
                   std::source_location where = std::source_location::current());
void copy_async_commit();
void wait_for_copies(int groups_left);
template <int kGroups>
void copy_async_wait() {
  wait_for_copies(kGroups);
}
// Throws Fault unless the `bytes` at `pointer` are in the block's shared memory and aligned to
// `bytes`.
void check_shared(const void* pointer, std::size_t bytes, const char* name,
                  const std::source_location& where);

}  // namespace blockscope::emulated
