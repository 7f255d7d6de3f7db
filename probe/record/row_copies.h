// The arrays of a layer in a trace: copies of the recorded heads in the file's type. A layer's
// copies are made together, so threads are woken only once per layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "decode_record/write/trace_writer.h"

namespace blockscope {

class RowCopies {
 public:
  /// `type`: that of the file, float32 or bfloat16.
  RowCopies(at::ScalarType type, int64_t layer_index) : type_(type), layer_index_(layer_index) {}

  /// Adds the given heads of x[row] as [heads, B, D]. x [S, H, B, D] is on the host, with any float
  /// type and any strides. Its values must not change before run().
  void add(Field field, const at::Tensor& x, int64_t row, const std::vector<int64_t>& heads);

  /// Makes the copies and appends them to `slices`.
  void run(std::vector<ArraySlice>& slices);

 private:
  struct Copy {
    Field field;
    at::Tensor from;  // [S, H, B, D], rows contiguous
    int64_t row = 0;
    std::vector<int64_t> heads;
    at::Tensor to;  // [heads, B, D]
  };
  void copy_head(const Copy& copy, int64_t head) const;

  at::ScalarType type_;
  int64_t layer_index_;
  std::vector<Copy> copies_;
};

}  // namespace blockscope
