#include "probe/decode/kv_cache.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/cpu/huge_pages.h"

namespace blockscope {
namespace {

at::Tensor empty_keys(const std::vector<int64_t>& sizes, at::ScalarType dtype, at::Device device) {
  return device.is_cpu() ? empty_on_huge_pages(sizes, dtype)
                         : at::empty(sizes, at::dtype(dtype).device(device));
}

}  // namespace

int64_t KvCacheShape::layer_capacity(int64_t index) const {
  const int64_t window = layer(index).window;
  return window == 0 ? capacity : std::min(capacity, window - 1 + most_stored);
}

KvCache::KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device) {
  at::Tensor all;
  if (shape.layers.empty()) {
    all = empty_keys({2 * shape.num_layers, shape.num_sequences, shape.num_kv_heads, shape.capacity,
                      shape.head_dim},
                     dtype, device);
  }
  for (int64_t index = 0; index < shape.num_layers; ++index) {
    const KvCacheShape::Layer layer = shape.layer(index);
    const at::Tensor both = all.defined()
                                ? all.narrow(0, 2 * index, 2)
                                : empty_keys({2, shape.num_sequences, layer.num_kv_heads,
                                              shape.layer_capacity(index), layer.head_dim},
                                             dtype, device);
    key_.push_back(both.select(0, 0));
    value_.push_back(both.select(0, 1));
    windows_.push_back(layer.window);
  }
  lengths_.assign(static_cast<size_t>(shape.num_sequences), 0);
}

int64_t KvCache::held_of(int64_t layer, int64_t length) const {
  const int64_t window = windows_[static_cast<size_t>(layer)];
  return window == 0 ? length : std::min(length, window - 1);
}

int64_t KvCache::held(int64_t layer, int64_t slot) const { return held_of(layer, length(slot)); }

void KvCache::store(int64_t layer, int64_t first_slot, const at::Tensor& k, const at::Tensor& v) {
  const size_t index = static_cast<size_t>(layer);
  const int64_t capacity = key_[index].size(2);
  for (int64_t row = 0; row < k.size(0); ++row) {
    const int64_t slot = first_slot + row;
    const int64_t begin = held(layer, slot);
    const int64_t count = k.size(2);
    if (begin + count > capacity) {
      throw std::logic_error(fmt::format("kv cache: {} + {} positions exceed the capacity {}",
                                         begin, count, capacity));
    }
    key_[index].select(0, slot).narrow(1, begin, count).copy_(k.select(0, row));
    value_[index].select(0, slot).narrow(1, begin, count).copy_(v.select(0, row));
  }
}

void KvCache::commit(int64_t slot, int64_t length) {
  const int64_t before = this->length(slot);
  lengths_[static_cast<size_t>(slot)] += length;
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    const int64_t kept = held(layer, slot);
    const int64_t dropped = held_of(layer, before) + length - kept;
    if (dropped == 0) continue;
    for (auto* side : {&key_, &value_}) {
      const at::Tensor keys = (*side)[static_cast<size_t>(layer)].select(0, slot);
      keys.narrow(1, 0, kept).copy_(keys.narrow(1, dropped, kept).clone());
    }
  }
}

void KvCache::remove(int64_t slot) {
  const int64_t last = num_active() - 1;
  if (slot != last) {
    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      const int64_t count = held(layer, last);
      for (auto* side : {&key_, &value_}) {
        const at::Tensor& keys = (*side)[static_cast<size_t>(layer)];
        keys.select(0, slot).narrow(1, 0, count).copy_(keys.select(0, last).narrow(1, 0, count));
      }
    }
    lengths_[static_cast<size_t>(slot)] = length(last);
  }
  lengths_.pop_back();
}

std::vector<int64_t> KvCache::visible(int64_t layer, const std::vector<int64_t>& stored) const {
  std::vector<int64_t> lengths;
  for (const int64_t length : lengths_) lengths.push_back(held_of(layer, length));
  if (!stored.empty() && windows_[static_cast<size_t>(layer)] > 0) {
    throw std::logic_error("kv cache: a layer with a window shows only what is committed");
  }
  for (size_t slot = 0; slot < stored.size(); ++slot) lengths[slot] += stored[slot];
  return lengths;
}

at::Tensor KvCache::lengths(int64_t layer, const std::vector<int64_t>& stored) const {
  return at::tensor(visible(layer, stored), at::kLong);
}

at::Tensor KvCache::first_positions(int64_t layer) const {
  if (windows_[static_cast<size_t>(layer)] == 0) return {};
  std::vector<int64_t> first;
  for (const int64_t length : lengths_) first.push_back(length - held_of(layer, length));
  return at::tensor(first, at::kLong);
}

at::Tensor KvCache::active(const at::Tensor& full, int64_t layer,
                           const std::vector<int64_t>& stored) const {
  const std::vector<int64_t> lengths = visible(layer, stored);
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  return full.narrow(0, 0, num_active()).narrow(2, 0, longest);
}

at::Tensor KvCache::key(int64_t layer, const std::vector<int64_t>& stored) const {
  return active(key_[static_cast<size_t>(layer)], layer, stored);
}

at::Tensor KvCache::value(int64_t layer, const std::vector<int64_t>& stored) const {
  return active(value_[static_cast<size_t>(layer)], layer, stored);
}

at::Tensor KvCache::stored_key(int64_t layer, int64_t slot, int64_t stored) const {
  return key_[static_cast<size_t>(layer)]
      .narrow(0, slot, 1)
      .narrow(2, 0, held(layer, slot) + stored);
}

at::Tensor KvCache::stored_value(int64_t layer, int64_t slot, int64_t stored) const {
  return value_[static_cast<size_t>(layer)]
      .narrow(0, slot, 1)
      .narrow(2, 0, held(layer, slot) + stored);
}

int64_t KvCache::size_bytes(const KvCacheShape& shape, at::ScalarType dtype) {
  int64_t elements = 0;
  for (int64_t index = 0; index < shape.num_layers; ++index) {
    const KvCacheShape::Layer layer = shape.layer(index);
    elements += layer.num_kv_heads * shape.layer_capacity(index) * layer.head_dim;
  }
  return 2 * shape.num_sequences * elements * static_cast<int64_t>(at::elementSize(dtype));
}

}  // namespace blockscope
