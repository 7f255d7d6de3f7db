// --device: what a run needs of LibTorch and of us beyond the CPU is loaded when it is asked for,
// and not before.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace blockscope {

/// `name`: cpu, cuda or cuda:N. For CUDA loads libtorch_cuda.so from LibTorch's folder and
/// libblockscope_kernels_cuda.so from ours, where they are not linked or preloaded already; without
/// the second, operators run as torch operators. Must be called before anything asks
/// LibTorch for CUDA. Throws UsageError for another name, Error where a library, the driver or the
/// GPU is missing.
///
/// `local_rank`: which of a node's processes this is, where a launcher started several. Plain
/// "cuda" is then the GPU of that number (modulo the GPUs that are visible); without it the first.
at::Device open_device(const std::string& name, std::optional<int64_t> local_rank = std::nullopt);

/// The index of that GPU among `devices` visible ones. A launcher that shows each process its own
/// GPU only leaves it index 0.
int gpu_of_rank(std::optional<int64_t> local_rank, int devices);

/// Bytes that are free on a device, which is not the CPU.
int64_t free_device_memory(at::Device device);

}  // namespace blockscope
