// The committed keys and values of a batch of sequences: one preallocated tensor per layer, so the
// prefix is read in place, never concatenated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

struct KvCacheShape {
  int64_t num_layers = 0;
  int64_t num_sequences = 0;  // S, slots; a finished sequence's slot is closed up
  int64_t num_kv_heads = 0;   // K
  int64_t capacity = 0;       // positions per sequence
  int64_t head_dim = 0;       // D
};

class KvCache {
 public:
  KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device = at::kCPU);

  /// Writes k, v [1 or S', K, T, D] of slots [first_slot, first_slot + S') behind each slot's
  /// committed length. Nothing is visible before `commit`.
  void store(int64_t layer, int64_t first_slot, const at::Tensor& k, const at::Tensor& v);

  /// Makes T stored positions of a slot visible, once all layers have stored them.
  void commit(int64_t slot, int64_t length);

  /// Closes the gap of a finished sequence: the last active slot moves to `slot`.
  void remove(int64_t slot);

  int64_t num_layers() const { return std::ssize(key_); }
  int64_t num_active() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t slot) const { return lengths_[static_cast<size_t>(slot)]; }
  /// [num_active] int64, on the host: committed positions per slot, and `stored` ones behind them:
  /// none, or [num_active] positions that this layer has stored and that are not committed yet.
  at::Tensor lengths(const std::vector<int64_t>& stored = {}) const;

  /// [num_active, K, N, D] views, N = longest of lengths(stored); entries behind a slot's own
  /// length are not defined.
  at::Tensor key(int64_t layer, const std::vector<int64_t>& stored = {}) const;
  at::Tensor value(int64_t layer, const std::vector<int64_t>& stored = {}) const;

  /// [1, K, length + T, D] views of one slot, with T positions stored but not yet committed.
  at::Tensor stored_key(int64_t layer, int64_t slot, int64_t stored) const;
  at::Tensor stored_value(int64_t layer, int64_t slot, int64_t stored) const;

  /// Bytes a cache of this shape takes.
  static int64_t size_bytes(const KvCacheShape& shape, at::ScalarType dtype);

 private:
  std::vector<int64_t> visible(const std::vector<int64_t>& stored) const;
  at::Tensor active(const at::Tensor& full, const std::vector<int64_t>& stored) const;

  int64_t capacity_ = 0;
  std::vector<at::Tensor> key_;    // per layer [S, K, capacity, D]
  std::vector<at::Tensor> value_;  // per layer [S, K, capacity, D]
  std::vector<int64_t> lengths_;   // active slots only
};

}  // namespace blockscope
