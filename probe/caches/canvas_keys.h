// Keys and values of every position of one sequence of a bidirectional model, as they were computed
// last. The keys outside the block (external) come first, in the order of their positions; the
// block's own keys (internal) come last. Both are therefore views of one tensor, and moving to the
// next block exchanges only B rows.
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

  /// Makes the block begin at `start`. Stored keys and values stay.
  void begin_block(int64_t start);
  int64_t block_start() const { return block_start_; }
  const CanvasShape& shape() const { return shape_; }

  /// Writes rows [1, K, R, D] of `positions` (absolute, ascending, R of them).
  void write_keys(int64_t layer, const std::vector<int64_t>& positions, const at::Tensor& rows);
  void write_values(int64_t layer, const std::vector<int64_t>& positions, const at::Tensor& rows);
  /// The same for positions that a device chose; `positions` [R] int64 is on that device.
  void write_chosen_keys(int64_t layer, const at::Tensor& positions, const at::Tensor& rows);
  /// Rows [1, K, R, D] of `positions`, copied.
  at::Tensor value_rows(int64_t layer, const std::vector<int64_t>& positions) const;

  /// [1, K, L - B, D] views, by position: external key i is that of position i before the block,
  /// and of position i + B after it.
  at::Tensor external_key(int64_t layer) const;
  at::Tensor external_value(int64_t layer) const;
  /// [1, K, B, D] views.
  at::Tensor block_key(int64_t layer) const;
  at::Tensor block_value(int64_t layer) const;
  /// [1, K, L, D], every key: the external ones, then the block's.
  const at::Tensor& all_keys(int64_t layer) const { return key_[static_cast<size_t>(layer)]; }
  const at::Tensor& all_values(int64_t layer) const { return value_[static_cast<size_t>(layer)]; }
  /// [K, L, D] copies, in the order of positions.
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
  at::Tensor places_;  // [L] int64 on the device, by position; undefined until first used
  std::vector<at::Tensor> key_, value_;  // by layer [1, K, L, D]
};

}  // namespace blockscope
