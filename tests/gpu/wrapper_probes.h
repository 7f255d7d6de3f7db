// The probes of wrapper_probes.cuh, on both backends (GPU and emulator). No torch, no CUDA.
#pragma once

#include <cstdint>

namespace blockscope {

constexpr int kProbeThreads = 64;
constexpr int kProbeWords = 8192;             // read by a probe
constexpr int kProbeResults = 65536;          // written at most, zero before
constexpr int kProbeSharedBytes = 4096;       // of a thread block
constexpr int kProbeLargeShared = 80 * 1024;  // above the 48 KiB that need no asking

namespace cuda {
// `on`: a cudaStream_t; pointers into the device's memory.
void run_probe(int probe, const uint32_t* in, uint32_t* out, void* on);
}  // namespace cuda
namespace emulated {
void run_probe(int probe, const uint32_t* in, uint32_t* out, void* on);
const char* probe_name(int probe);  // null after the last
}  // namespace emulated

}  // namespace blockscope
