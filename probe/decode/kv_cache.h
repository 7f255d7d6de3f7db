// The committed keys and values of a batch of sequences. Each layer has one preallocated tensor, so
// the prefix is read in place and never concatenated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

struct KvCacheShape {
  int64_t num_layers = 0;
  int64_t num_sequences = 0;  // S, slots; the last slot fills that of a finished sequence
  int64_t num_kv_heads = 0;   // K
  int64_t capacity = 0;       // positions per sequence
  int64_t head_dim = 0;       // D
};

class KvCache {
 public:
  KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device = at::kCPU);

  /// Writes k, v [1 or S', K, T, D] of slots [first_slot, first_slot + S') after each slot's
  /// committed positions. They become visible with `commit`.
  void store(int64_t layer, int64_t first_slot, const at::Tensor& k, const at::Tensor& v);

  /// Makes `length` stored positions of a slot visible. Call it once all layers have stored them.
  void commit(int64_t slot, int64_t length);

  /// Removes a finished sequence: the last active slot moves to `slot`.
  void remove(int64_t slot);

  int64_t num_layers() const { return std::ssize(key_); }
  int64_t num_active() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t slot) const { return lengths_[static_cast<size_t>(slot)]; }
  /// [num_active] int64, on the host: committed positions per slot, plus `stored`. `stored`: empty,
  /// or [num_active] positions that this layer has stored but that are not committed yet.
  at::Tensor lengths(const std::vector<int64_t>& stored = {}) const;

  /// [num_active, K, N, D] views, N = longest of lengths(stored). Entries after a slot's own length
  /// are not defined.
  at::Tensor key(int64_t layer, const std::vector<int64_t>& stored = {}) const;
  at::Tensor value(int64_t layer, const std::vector<int64_t>& stored = {}) const;

  /// [1, K, length + T, D] views of one slot, with T positions stored but not yet committed.
  at::Tensor stored_key(int64_t layer, int64_t slot, int64_t stored) const;
  at::Tensor stored_value(int64_t layer, int64_t slot, int64_t stored) const;

  /// The bytes that a cache of this shape takes.
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
