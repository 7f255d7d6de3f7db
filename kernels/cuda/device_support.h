// Shared parts of the operators on devices: tensors as plain pointers, and batches of sequences
// with their lengths in the launch arguments. Internal to kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/device_calls.h"

namespace blockscope {

inline DeviceRows device_rows(const at::Tensor& tensor) {
  // The stride of a dimension of size 1 is never used and may have any value.
  const auto stride = [&](int64_t i) { return tensor.size(i) > 1 ? tensor.stride(i) : 0; };
  return {tensor.const_data_ptr(), stride(0), stride(1), stride(2)};
}

inline DeviceFloat device_float(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return DeviceFloat::kFloat32;
  return tensor.scalar_type() == at::kHalf ? DeviceFloat::kFloat16 : DeviceFloat::kBFloat16;
}

// The data of a tensor [S, ...], starting at one sequence; null if it is undefined.
template <class Value>
Value* from_sequence(const at::Tensor& tensor, int64_t sequence) {
  if (!tensor.defined()) return nullptr;
  return reinterpret_cast<Value*>(static_cast<char*>(tensor.mutable_data_ptr()) +
                                  sequence * tensor.stride(0) * tensor.element_size());
}

inline void check_device_dim(const char* op, int64_t dim) {
  TORCH_CHECK(dim <= kMaxDeviceDim, op, ": q: expected head_dim up to ", kMaxDeviceDim,
              " on a GPU, got ", dim, ". HINT: run this model on the CPU");
}

// Kernels count with 32 bits.
inline int device_int(const char* op, const char* name, int64_t size) {
  TORCH_CHECK(size >= 0 && size <= std::numeric_limits<int32_t>::max() / 2, op, ": ", name,
              ": expected at most 2^30 - 1 on a GPU, got ", size);
  return static_cast<int>(size);
}

// Whether this thread is in a TrustedSetsScope (ops.h).
bool trusts_sets();

// Calls work(first, count) for batches of sequences.
template <class Work>
void for_batches(int64_t sequences, const Work& work) {
  for (int64_t first = 0; first < sequences; first += kMaxSequencesPerCall) {
    work(first, std::min<int64_t>(kMaxSequencesPerCall, sequences - first));
  }
}

template <class Call>
void set_lengths(Call& call, const std::vector<int64_t>& lengths, int64_t first, int64_t count) {
  for (int64_t s = 0; s < count; ++s) {
    call.lengths[s] = static_cast<int32_t>(lengths[static_cast<size_t>(first + s)]);
  }
}

}  // namespace blockscope
