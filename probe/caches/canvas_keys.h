// Keys and values of every position of one sequence of a bidirectional model, in the state in which
// they were computed last. The block's own stand last, behind all others in the order of their
// positions: so the external keys (everything outside the block) and the internal ones are views of
// one tensor, and the step to the next block exchanges B rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

struct CanvasShape {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;  // K
  int64_t head_dim = 0;      // D
  int64_t length = 0;        // L, positions: the prompt and all blocks
  int64_t block_length = 0;  // B
};

class CanvasKeys {
 public:
  CanvasKeys(const CanvasShape& shape, at::ScalarType dtype, at::Device device = at::kCPU);

  /// The block begins at this position; what was stored stays.
  void begin_block(int64_t start);
  int64_t block_start() const { return block_start_; }
  const CanvasShape& shape() const { return shape_; }

  /// Writes rows [1, K, R, D] of `positions` (absolute, ascending, R of them).
  void write_keys(int64_t layer, const std::vector<int64_t>& positions, const at::Tensor& rows);
  void write_values(int64_t layer, const std::vector<int64_t>& positions, const at::Tensor& rows);
  /// Likewise of positions that a device chose: [R] int64 there.
  void write_chosen_keys(int64_t layer, const at::Tensor& positions, const at::Tensor& rows);
  /// Rows [1, K, R, D] of `positions`, copied.
  at::Tensor value_rows(int64_t layer, const std::vector<int64_t>& positions) const;

  /// [1, K, L - B, D] views, by position: external key i stands at position i, or at i + B from the
  /// block's start on.
  at::Tensor external_key(int64_t layer) const;
  at::Tensor external_value(int64_t layer) const;
  /// [1, K, B, D] views.
  at::Tensor block_key(int64_t layer) const;
  at::Tensor block_value(int64_t layer) const;
  /// [1, K, L, D], every key: the external ones, then the block's.
  const at::Tensor& all_keys(int64_t layer) const { return key_[static_cast<size_t>(layer)]; }
  const at::Tensor& all_values(int64_t layer) const { return value_[static_cast<size_t>(layer)]; }
  /// [K, L, D] copies in the order of positions.
  at::Tensor ordered_key(int64_t layer) const;
  at::Tensor ordered_value(int64_t layer) const;

  /// Bytes that keys of this shape take.
  static int64_t size_bytes(const CanvasShape& shape, at::ScalarType dtype);

 private:
  int64_t place(int64_t position) const;
  void write(at::Tensor& stored, const std::vector<int64_t>& positions, const at::Tensor& rows);
  at::Tensor ordered(const at::Tensor& stored) const;

  CanvasShape shape_;
  int64_t block_start_ = -1;
  at::Tensor
      places_;  // [L] int64 on the device, of every position; undefined until it is asked for
  std::vector<at::Tensor> key_, value_;  // by layer [1, K, L, D]
};

}  // namespace blockscope
