// Shared parts of the CPU operators in addition to ATen: raw views of tensors, rounding, tasks.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>

#include "kernels/cpu/row_tile.h"
#include "kernels/simd/row_kernels.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

inline Element element_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Element::kFloat32;
  return tensor.scalar_type() == at::kHalf ? Element::kFloat16 : Element::kBFloat16;
}

// Raw bytes of a [a, b, c, dim] tensor with arbitrary strides in the first three dimensions.
struct RawView {
  const char* data = nullptr;
  int64_t strides[3] = {};  // bytes

  explicit RawView(const at::Tensor& tensor)
      : data(static_cast<const char*>(tensor.const_data_ptr())) {
    for (int64_t i = 0; i < 3; ++i) strides[i] = tensor.stride(i) * tensor.element_size();
  }
  const char* at(int64_t a, int64_t b, int64_t c) const {
    return data + a * strides[0] + b * strides[1] + c * strides[2];
  }
};

inline KeyRange key_range(const RawView& keys, const RawView& values, int64_t sequence,
                          int64_t kv_head) {
  return {keys.at(sequence, kv_head, 0), values.at(sequence, kv_head, 0), keys.strides[2],
          values.strides[2]};
}

// Rounds `dim` floats once to `element` and stores them at output[offset...].
inline void store_rounded(const float* values, int64_t dim, Element element, void* output,
                          int64_t offset) {
  best_row_kernels().convert(Element::kFloat32, values, dim, element,
                             static_cast<char*>(output) + offset * element_bytes(element));
}

// Whether a SerialScope lives on this thread.
bool runs_serially();

// Runs task(i) for i in [0, num_tasks) on the threads of ATen. A free thread takes the next task,
// because tasks differ in size. The order doesn't matter: each task writes its own memory.
template <class Task>
void parallel_tasks(int64_t num_tasks, const Task& task) {
  if (runs_serially()) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i);
    return;
  }
  if (num_tasks <= 0) return;
  std::atomic<int64_t> next{0};
  const int64_t workers = std::min<int64_t>(num_tasks, at::get_num_threads());
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < num_tasks; i = next++) task(i);
  });
}

}  // namespace blockscope
