// The committed keys and values of a batch of sequences. Each layer has one preallocated tensor, so
// the prefix is read in place and never concatenated. A layer with a window keeps the newest
// window - 1 positions alone: those that the next position sees.
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
  struct Layer {
    int64_t num_kv_heads = 0, head_dim = 0, window = 0;  // as in LayerShape
  };
  std::vector<Layer> layers{};  // [num_layers]; empty: all layers are alike and have no window
  int64_t most_stored = 0;      // the most positions that one pass stores, for layers with a window

  Layer layer(int64_t index) const {
    return layers.empty() ? Layer{num_kv_heads, head_dim} : layers[static_cast<size_t>(index)];
  }
  /// The positions of a layer's tensor.
  int64_t layer_capacity(int64_t index) const;
};

class KvCache {
 public:
  KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device = at::kCPU);

  /// Writes k, v [1 or S', K, T, D] of slots [first_slot, first_slot + S') after each slot's
  /// committed positions. They become visible with `commit`.
  void store(int64_t layer, int64_t first_slot, const at::Tensor& k, const at::Tensor& v);

  /// Makes `length` stored positions of a slot visible. Call it once all layers have stored them.
  void commit(int64_t slot, int64_t length);
  /// After an empty slot stored what its layers hold of a prefix of `length` positions: makes it
  /// visible.
  void restore(int64_t slot, int64_t length) { lengths_[static_cast<size_t>(slot)] = length; }

  /// Removes a finished sequence: the last active slot moves to `slot`.
  void remove(int64_t slot);

  int64_t num_layers() const { return std::ssize(key_); }
  int64_t window(int64_t layer) const { return windows_[static_cast<size_t>(layer)]; }
  int64_t num_active() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t slot) const { return lengths_[static_cast<size_t>(slot)]; }
  /// The committed positions of a slot that a layer holds: all, or the newest of its window.
  int64_t held(int64_t layer, int64_t slot) const;
  /// [num_active] int64, on the host: the layer's held positions per slot, plus `stored`. `stored`:
  /// empty, or [num_active] positions that this layer has stored but that are not committed yet
  /// (only of layers without a window).
  at::Tensor lengths(int64_t layer, const std::vector<int64_t>& stored = {}) const;
  /// [num_active] int64, on the host: the absolute position of the layer's first key per slot;
  /// undefined for a layer without a window: 0.
  at::Tensor first_positions(int64_t layer) const;

  /// [num_active, K, N, D] views, N = longest of lengths(layer, stored). Entries after a slot's own
  /// length are not defined.
  at::Tensor key(int64_t layer, const std::vector<int64_t>& stored = {}) const;
  at::Tensor value(int64_t layer, const std::vector<int64_t>& stored = {}) const;

  /// [1, K, held + T, D] views of one slot, with T positions stored but not yet committed.
  at::Tensor stored_key(int64_t layer, int64_t slot, int64_t stored) const;
  at::Tensor stored_value(int64_t layer, int64_t slot, int64_t stored) const;

  /// The bytes that a cache of this shape takes.
  static int64_t size_bytes(const KvCacheShape& shape, at::ScalarType dtype);

 private:
  std::vector<int64_t> visible(int64_t layer, const std::vector<int64_t>& stored) const;
  at::Tensor active(const at::Tensor& full, int64_t layer,
                    const std::vector<int64_t>& stored) const;
  int64_t held_of(int64_t layer, int64_t length) const;

  std::vector<int64_t> windows_;   // per layer; 0: none
  std::vector<at::Tensor> key_;    // per layer [S, K, capacity, D]
  std::vector<at::Tensor> value_;  // per layer [S, K, capacity, D]
  std::vector<int64_t> lengths_;   // active slots only
};

}  // namespace blockscope
