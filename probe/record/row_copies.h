// The arrays that a layer leaves in a trace: copies of the recorded heads in the file's type, made
// together, so that threads are woken once a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "decode_record/write/trace_writer.h"

namespace blockscope {

class RowCopies {
 public:
  /// type: of the file, float32 or bfloat16.
  RowCopies(at::ScalarType type, int64_t layer_index) : type_(type), layer_index_(layer_index) {}

  /// x[row] of x [S, H, B, D], any float type, strided at will, on the host: the given heads of it
  /// as [heads, B, D]. Its values must stay as they are until run().
  void add(Field field, const at::Tensor& x, int64_t row, const std::vector<int64_t>& heads);

  /// Appends what was added to `slices`.
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
