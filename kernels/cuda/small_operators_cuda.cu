// The smaller operators compiled for GPUs, and the check that there is code for a GPU.
#define BLOCKSCOPE_COMPILES_LAUNCHES
#include "kernels/cuda/device_calls.h"

namespace blockscope::cuda {

__global__ void does_nothing() {}

std::string missing_code() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, does_nothing);
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // clear it, so a later call does not report it
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return "compute capability " + std::to_string(major) + "." + std::to_string(minor) + ", " +
         cudaGetErrorString(error);
}

}  // namespace blockscope::cuda
