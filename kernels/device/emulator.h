// Executes device code on the CPU, so that a machine without a GPU tests it. Thread blocks run one
// after another, a fiber for each thread; which block, warp and lane runs next follows a seed, and
// a warp may run ahead of the others as far as barriers let it. What the hardware leaves undefined
// is made visible:
// - shared memory starts as NaN for every block, and addresses outside it are refused;
// - the target of copy_async_16 is NaN (poisoned for AddressSanitizer) until its thread has waited;
// - lanes of a warp that meet different instructions, and barriers that not every thread reaches,
//   end the run with a table of who waits where.
// Blocks never overlap: no protocol between them is executed truthfully but "second kernel".
// Correctness only; nothing here says anything about speed but the counters.
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

// What was done wrong, and where every thread stood.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How multiply_add rounds its sums: to nearest, or toward zero as tensor cores may.
enum class Rounding { kNearest, kTruncate };

struct Options {
  uint64_t seed = 1;
  Rounding rounding = Rounding::kNearest;
  int shared_limit = 227 * 1024;  // of a thread block; an H100's
};

// Since the last reset; exact.
struct Counters {
  int64_t copied_bytes = 0;     // read from global memory by copy_async_16
  int64_t bank_conflicts = 0;   // more than one row in a bank group, by load_matrix_*
  int64_t matrix_products = 0;  // multiply_add of a warp
  int64_t barriers = 0;         // __syncthreads of a block
};

void set_options(const Options& options);
Counters& counters();
Rounding rounding();
int shared_limit();

// Runs `body` once for every thread of the grid; block.x a multiple of 32, y and z 1. Throws Fault.
void run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

// --- what emulated_device.h is made of; only inside run_grid

using WarpWork = void (*)(void* const* slots);  // of lanes 0..31

// Returns when all threads of the block have come here.
void wait_for_block(const std::source_location& where);
// Returns when all 32 lanes have come and `work` was done once on their slots.
void wait_for_warp(const char* name, const std::source_location& where, void* slot, WarpWork work);
// A mask other than all lanes is refused: our kernels have no divergent warps.
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
// `bytes` at `pointer` lie in the block's shared memory, aligned to `bytes`; else Fault.
void check_shared(const void* pointer, std::size_t bytes, const char* name,
                  const std::source_location& where);

}  // namespace blockscope::emulated
