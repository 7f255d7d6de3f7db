// Heads, head sizes and windows of a model's attention layers, which may differ (ragged layers),
// and which of them a trace has.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct LayerSizes {
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;     ///< query heads of every layer;
                                  ///< head = kv_head * group_size(layer) + g
  std::int64_t num_kv_heads = 0;  ///< the most of a layer
  std::int64_t head_dim = 0;      ///< the largest of a layer

  // [num_layers], or all three empty: the layers are alike and have no window.
  std::vector<std::int64_t> layer_kv_heads;
  std::vector<std::int64_t> layer_head_dim;
  std::vector<std::int64_t> layer_window;  ///< W: the newest W - 1 keys before a block; 0: all keys

  std::vector<std::int64_t> layers;    ///< recorded layers, ascending
  std::vector<std::int64_t> heads;     ///< recorded query heads, ascending
  std::vector<std::int64_t> kv_heads;  ///< recorded KV heads, ascending; a layer has those below
                                       ///< its kv_heads_of()

  /// "8 KV heads" or "2 or 8 KV heads", and likewise "head_dim 128" and the windows, for a person.
  std::string kv_heads_text() const;
  std::string head_dim_text() const;
  std::string window_text() const;  ///< empty: no layer has one

  bool operator==(const LayerSizes&) const = default;

  // `layer` is a layer of the model, not a recorded slot.
  bool ragged() const { return !layer_kv_heads.empty(); }
  std::int64_t kv_heads_of(std::int64_t layer) const {
    return ragged() ? layer_kv_heads[static_cast<std::size_t>(layer)] : num_kv_heads;
  }
  std::int64_t head_dim_of(std::int64_t layer) const {
    return ragged() ? layer_head_dim[static_cast<std::size_t>(layer)] : head_dim;
  }
  std::int64_t window_of(std::int64_t layer) const {
    return ragged() ? layer_window[static_cast<std::size_t>(layer)] : 0;
  }
  /// Query heads that share a KV head.
  std::int64_t group_size(std::int64_t layer) const {
    return num_heads / std::max<std::int64_t>(kv_heads_of(layer), 1);
  }
  /// The KV head of query head `head`.
  std::int64_t kv_head_of(std::int64_t layer, std::int64_t head) const {
    return head / std::max<std::int64_t>(group_size(layer), 1);
  }
  /// External keys of the layer where N keys come before the block: those at first_key() to N - 1.
  std::int64_t external_keys(std::int64_t layer, std::int64_t context_length) const {
    const std::int64_t window = window_of(layer);
    return window == 0 ? context_length : std::min(context_length, window - 1);
  }
  std::int64_t first_key(std::int64_t layer, std::int64_t context_length) const {
    return context_length - external_keys(layer, context_length);
  }

  // Of a recorded layer, by its slot in `layers`.
  std::int64_t channels_at(std::size_t slot) const { return head_dim_of(layers[slot]); }
  std::int64_t keys_at(std::size_t slot, std::int64_t context_length) const {
    return external_keys(layers[slot], context_length);
  }
  /// The recorded KV heads that the layer has: the first ones of `kv_heads`.
  std::size_t kv_slots_at(std::size_t slot) const {
    const auto own = std::ranges::lower_bound(kv_heads, kv_heads_of(layers[slot]));
    return static_cast<std::size_t>(own - kv_heads.begin());
  }
};

}  // namespace blockscope
