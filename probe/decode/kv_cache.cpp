#include "probe/decode/kv_cache.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/cpu/huge_pages.h"

namespace blockscope {

KvCache::KvCache(const KvCacheShape& shape, at::ScalarType dtype, at::Device device)
    : capacity_(shape.capacity) {
  const std::vector<int64_t> sizes{2 * shape.num_layers, shape.num_sequences, shape.num_kv_heads,
                                   shape.capacity, shape.head_dim};
  const at::Tensor all = device.is_cpu() ? empty_on_huge_pages(sizes, dtype)
                                         : at::empty(sizes, at::dtype(dtype).device(device));
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    key_.push_back(all.select(0, 2 * layer));
    value_.push_back(all.select(0, 2 * layer + 1));
  }
  lengths_.assign(static_cast<size_t>(shape.num_sequences), 0);
}

void KvCache::store(int64_t layer, int64_t first_slot, const at::Tensor& k, const at::Tensor& v) {
  const size_t index = static_cast<size_t>(layer);
  for (int64_t row = 0; row < k.size(0); ++row) {
    const int64_t slot = first_slot + row;
    const int64_t begin = length(slot);
    const int64_t count = k.size(2);
    if (begin + count > capacity_) {
      throw std::logic_error(fmt::format("kv cache: {} + {} positions exceed the capacity {}",
                                         begin, count, capacity_));
    }
    key_[index].select(0, slot).narrow(1, begin, count).copy_(k.select(0, row));
    value_[index].select(0, slot).narrow(1, begin, count).copy_(v.select(0, row));
  }
}

void KvCache::commit(int64_t slot, int64_t length) {
  lengths_[static_cast<size_t>(slot)] += length;
}

void KvCache::remove(int64_t slot) {
  const int64_t last = num_active() - 1;
  if (slot != last) {
    const int64_t count = length(last);
    for (auto* side : {&key_, &value_}) {
      for (at::Tensor& tensor : *side) {
        tensor.select(0, slot)
            .narrow(1, 0, count)
            .copy_(tensor.select(0, last).narrow(1, 0, count));
      }
    }
    lengths_[static_cast<size_t>(slot)] = count;
  }
  lengths_.pop_back();
}

std::vector<int64_t> KvCache::visible(const std::vector<int64_t>& stored) const {
  std::vector<int64_t> lengths = lengths_;
  for (size_t slot = 0; slot < stored.size(); ++slot) lengths[slot] += stored[slot];
  return lengths;
}

at::Tensor KvCache::lengths(const std::vector<int64_t>& stored) const {
  return at::tensor(visible(stored), at::kLong);
}

at::Tensor KvCache::active(const at::Tensor& full, const std::vector<int64_t>& stored) const {
  const std::vector<int64_t> lengths = visible(stored);
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  return full.narrow(0, 0, num_active()).narrow(2, 0, longest);
}

at::Tensor KvCache::key(int64_t layer, const std::vector<int64_t>& stored) const {
  return active(key_[static_cast<size_t>(layer)], stored);
}

at::Tensor KvCache::value(int64_t layer, const std::vector<int64_t>& stored) const {
  return active(value_[static_cast<size_t>(layer)], stored);
}

at::Tensor KvCache::stored_key(int64_t layer, int64_t slot, int64_t stored) const {
  return key_[static_cast<size_t>(layer)].narrow(0, slot, 1).narrow(2, 0, length(slot) + stored);
}

at::Tensor KvCache::stored_value(int64_t layer, int64_t slot, int64_t stored) const {
  return value_[static_cast<size_t>(layer)].narrow(0, slot, 1).narrow(2, 0, length(slot) + stored);
}

int64_t KvCache::size_bytes(const KvCacheShape& shape, at::ScalarType dtype) {
  return 2 * shape.num_layers * shape.num_sequences * shape.num_kv_heads * shape.capacity *
         shape.head_dim * static_cast<int64_t>(at::elementSize(dtype));
}

}  // namespace blockscope
