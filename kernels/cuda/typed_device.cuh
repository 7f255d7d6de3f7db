// Shared parts of kernels: rows of a strided tensor, and the choice of a type.
#pragma once

#include "kernels/cuda/split_attention_launch.h"
#include "kernels/device/device.h"

namespace blockscope::BLOCKSCOPE_BACKEND {

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

template <class Scalar>
__device__ __forceinline__ const Scalar* row_at(const DeviceRows& rows, int64_t sequence,
                                                int64_t head, int64_t row) {
  return static_cast<const Scalar*>(rows.data) + sequence * rows.sequence + head * rows.head +
         row * rows.row;
}

// Whether its rows start at multiples of 16 bytes.
template <class Scalar>
__device__ __forceinline__ bool is_aligned(const DeviceRows& rows) {
  constexpr int64_t kMask = 16 / sizeof(Scalar) - 1;
  return (reinterpret_cast<uintptr_t>(rows.data) & 15u) == 0 &&
         ((rows.sequence | rows.head | rows.row) & kMask) == 0;
}

// Calls `work` with a value of the type.
template <class Work>
void with_type(DeviceFloat type, const Work& work) {
  switch (type) {
    case DeviceFloat::kFloat32:
      return work(float{});
    case DeviceFloat::kFloat16:
      return work(Half{});
    case DeviceFloat::kBFloat16:
      return work(BFloat16{});
  }
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
