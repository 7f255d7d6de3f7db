// Rows of a tensor for the operators of row_ops.h on the CPU.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cpu/cpu_support.h"

namespace blockscope {

/// Rows of a tensor of up to 4 dimensions, numbered in the order of a contiguous tensor.
class Rows {
 public:
  explicit Rows(const at::Tensor& x)
      : data_(static_cast<const char*>(x.const_data_ptr())),
        bytes_(x.element_size()),
        dim_(x.size(-1)) {
    const int64_t outer = x.dim() - 1;
    for (int64_t d = 0; d < outer; ++d) {
      const auto at = static_cast<size_t>(3 - outer + d);
      size_[at] = x.size(d);
      stride_[at] = x.stride(d) * bytes_;
    }
    count_ = size_[0] * size_[1] * size_[2];
  }

  int64_t count() const { return count_; }
  int64_t dim() const { return dim_; }
  int64_t row_bytes() const { return dim_ * bytes_; }
  /// The place of row `index` in the three dimensions before the last.
  std::array<int64_t, 3> place(int64_t index) const {
    return {index / (size_[1] * size_[2]), index / size_[2] % size_[1], index % size_[2]};
  }
  const char* at(const std::array<int64_t, 3>& place) const {
    return data_ + place[0] * stride_[0] + place[1] * stride_[1] + place[2] * stride_[2];
  }

 private:
  const char* data_;
  int64_t bytes_;
  int64_t dim_;
  int64_t count_ = 1;
  std::array<int64_t, 3> size_{1, 1, 1};
  std::array<int64_t, 3> stride_{};
};

/// Runs task(i) for `rows` rows with `elements` elements in total.
template <class Task>
void run_rows(int64_t rows, int64_t elements, const Task& task) {
  constexpr int64_t kGrain = 1 << 14;  // elements that pay for a thread
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(i);
  };
  if (runs_serially() || elements <= kGrain) return run(0, rows);
  const int64_t dim = std::max<int64_t>(1, elements / std::max<int64_t>(1, rows));
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / dim), run);
}

template <class Task>
void for_rows(const Rows& rows, const Task& task) {
  run_rows(rows.count(), rows.count() * rows.dim(), task);
}

}  // namespace blockscope
