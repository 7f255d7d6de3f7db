// --device: loads the libraries for a GPU only when a run asks for one.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace blockscope {

/// `name`: cpu, cuda or cuda:N. For CUDA, loads libtorch_cuda.so from LibTorch's folder and
/// libblockscope_kernels_cuda.so from ours, unless they are already linked or preloaded. Without
/// the second library, torch operators are used. Must be called before anything asks LibTorch for
/// CUDA. Throws UsageError for another name, and Error if a library, the driver or the GPU is
/// missing.
///
/// `local_rank`: the index of this process on its node, if a launcher started several. Plain "cuda"
/// then means the GPU of that number (modulo the visible GPUs); without `local_rank`, the first
/// GPU.
at::Device open_device(const std::string& name, std::optional<int64_t> local_rank = std::nullopt);

/// The index of this process's GPU among `devices` visible ones. It is 0 if the launcher shows each
/// process only its own GPU.
int gpu_of_rank(std::optional<int64_t> local_rank, int devices);

/// The free memory of a device other than the CPU, in bytes; 0 if torch does not report it.
int64_t free_device_memory(at::Device device);

}  // namespace blockscope
