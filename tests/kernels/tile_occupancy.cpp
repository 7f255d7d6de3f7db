// Thread blocks an SM of each GPU, by the toolkit's calculator, which needs none. tiles.h, which
// check_cuda_library.py writes, names the kernels and the registers that ptxas gave them:
//   TILE(80, 234, Deep, BFloat16, 128, 4, 1, 3, 64, 64)  PREFILL, MEANS, SPREAD(as TILE)
//   FLOATS(80, 110, 64)  SPREAD_FLOATS(as FLOATS)
// Prints "arch kernel shared_bytes blocks".
#include <cuda_occupancy.h>

#include <climits>
#include <cstdio>

#include "kernels/cuda/mean_tile_device.cuh"
#include "kernels/cuda/prefill_device.cuh"
#include "kernels/cuda/split_floats_device.cuh"
#include "kernels/cuda/split_tile_device.cuh"
#include "kernels/cuda/weight_spread_device.cuh"

namespace {

constexpr int kKiB = 1024;

// CUDA programming guide, "Technical Specifications per Compute Capability".
cudaOccDeviceProp properties(int arch) {
  cudaOccDeviceProp gpu;
  gpu.computeMajor = arch / 10;
  gpu.computeMinor = arch % 10;
  gpu.maxThreadsPerBlock = 1024;
  gpu.maxThreadsPerMultiprocessor = arch == 120 ? 1536 : 2048;
  gpu.regsPerBlock = 65536;
  gpu.regsPerMultiprocessor = 65536;
  gpu.warpSize = 32;
  gpu.sharedMemPerBlock = 48 * kKiB;
  gpu.sharedMemPerMultiprocessor = (arch == 80 ? 164 : arch == 120 ? 100 : 228) * kKiB;
  gpu.reservedSharedMemPerBlock = kKiB;
  gpu.sharedMemPerBlockOptin = gpu.sharedMemPerMultiprocessor - kKiB;
  gpu.numSms = 100;
  return gpu;
}

void print(int arch, int registers, const char* name, int threads, int shared_bytes) {
  const cudaOccDeviceProp gpu = properties(arch);
  cudaOccFuncAttributes kernel;
  kernel.maxThreadsPerBlock = threads;
  kernel.numRegs = registers;
  kernel.sharedSizeBytes = 0;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  kernel.maxDynamicSharedSizeBytes = static_cast<size_t>(shared_bytes);
  kernel.numBlockBarriers = 1;
  cudaOccDeviceState state;
  cudaOccResult result;
  const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
      &result, &gpu, &kernel, &state, threads, static_cast<size_t>(shared_bytes));
  std::printf("%d %s %d %d\n", arch, name, shared_bytes,
              error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0);
}

}  // namespace

int main() {
  using namespace blockscope;
  using namespace blockscope::emulated;
#define TILE(arch, registers, name, ...)                         \
  print(arch, registers, name, TileShape<__VA_ARGS__>::kThreads, \
        TileShape<__VA_ARGS__>::kSharedBytes);
#define PREFILL(arch, registers, name, ...)                      \
  print(arch, registers, name, TileShape<__VA_ARGS__>::kThreads, \
        kPrefillSharedBytes<TileShape<__VA_ARGS__>>);
#define MEANS(arch, registers, name, ...)                        \
  print(arch, registers, name, TileShape<__VA_ARGS__>::kThreads, \
        kMeanSharedBytes<TileShape<__VA_ARGS__>>);
#define SPREAD(arch, registers, name, ...)                       \
  print(arch, registers, name, TileShape<__VA_ARGS__>::kThreads, \
        kSpreadSharedBytes<TileShape<__VA_ARGS__>>);
#define FLOATS(arch, registers, name, dim) \
  print(arch, registers, name, FloatTile<dim>::kThreads, FloatTile<dim>::kSharedBytes);
#define SPREAD_FLOATS(arch, registers, name, dim) \
  print(arch, registers, name, FloatTile<dim>::kThreads, kSpreadFloatsSharedBytes<dim>);
#include "tiles.h"
}
