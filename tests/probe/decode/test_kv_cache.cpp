// The KV cache against plain tensors that were concatenated by hand.
#include "probe/decode/kv_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace blockscope {
namespace {

constexpr KvCacheShape kShape{2, 3, 2, 12, 5};  // layers, sequences, kv heads, capacity, head_dim

/// What each slot should hold, per layer: [K, N, D].
struct Mirror {
  std::vector<std::vector<at::Tensor>> key, value;  // [layer][slot]
  Mirror()
      : key(2, std::vector<at::Tensor>(3, at::empty({2, 0, 5}))),
        value(2, std::vector<at::Tensor>(3, at::empty({2, 0, 5}))) {}
};

void append(KvCache& cache, Mirror& mirror, int64_t slot, int64_t count) {
  for (int64_t layer = 0; layer < 2; ++layer) {
    const at::Tensor k = at::rand({1, 2, count, 5});
    const at::Tensor v = at::rand({1, 2, count, 5});
    cache.store(layer, slot, k, v);
    auto& key = mirror.key[static_cast<size_t>(layer)][static_cast<size_t>(slot)];
    auto& value = mirror.value[static_cast<size_t>(layer)][static_cast<size_t>(slot)];
    key = at::cat({key, k[0]}, 1);
    value = at::cat({value, v[0]}, 1);
  }
  cache.commit(slot, count);
}

void expect_equal(const KvCache& cache, const Mirror& mirror) {
  for (int64_t layer = 0; layer < 2; ++layer) {
    const auto& keys = mirror.key[static_cast<size_t>(layer)];
    const auto& values = mirror.value[static_cast<size_t>(layer)];
    ASSERT_EQ(cache.num_active(), static_cast<int64_t>(keys.size()));
    int64_t longest = 0;
    for (size_t slot = 0; slot < keys.size(); ++slot) {
      const int64_t length = keys[slot].size(1);
      longest = std::max(longest, length);
      EXPECT_EQ(cache.length(static_cast<int64_t>(slot)), length);
      EXPECT_EQ(cache.lengths(0)[static_cast<int64_t>(slot)].item<int64_t>(), length);
      const int64_t at = static_cast<int64_t>(slot);
      EXPECT_TRUE(at::equal(cache.key(layer)[at].narrow(1, 0, length), keys[slot]));
      EXPECT_TRUE(at::equal(cache.value(layer)[at].narrow(1, 0, length), values[slot]));
    }
    EXPECT_EQ(cache.key(layer).size(2), longest);
  }
}

TEST(KvCache, HoldsWhatWasCommittedPerSlot) {
  at::manual_seed(1);
  KvCache cache(kShape, at::kFloat);
  Mirror mirror;
  EXPECT_EQ(cache.key(0).size(2), 0);
  append(cache, mirror, 1, 4);
  append(cache, mirror, 0, 2);
  append(cache, mirror, 1, 3);
  append(cache, mirror, 2, 12);
  expect_equal(cache, mirror);
}

TEST(KvCache, ShowsStoredKeysOnlyAfterCommit) {
  at::manual_seed(2);
  KvCache cache(kShape, at::kFloat);
  Mirror mirror;
  append(cache, mirror, 0, 4);
  const at::Tensor k = at::rand({1, 2, 3, 5});
  cache.store(0, 0, k, k);
  EXPECT_EQ(cache.length(0), 4);
  EXPECT_EQ(cache.key(0).size(2), 4);
  EXPECT_EQ(cache.stored_key(0, 0, 3).size(2), 7);
  EXPECT_TRUE(at::equal(cache.stored_key(0, 0, 3)[0].narrow(1, 4, 3), k[0]));
  EXPECT_TRUE(at::equal(cache.stored_value(0, 0, 3)[0].narrow(1, 4, 3), k[0]));
  cache.store(0, 0, k + 1, k + 1);  // a second denoising pass overwrites what was not committed
  EXPECT_TRUE(at::equal(cache.stored_key(0, 0, 3)[0].narrow(1, 4, 3), k[0] + 1));
}

TEST(KvCache, KeepsTheOtherSequencesWhenOneIsRemoved) {
  for (int64_t gone = 0; gone < 3; ++gone) {
    SCOPED_TRACE(gone);
    at::manual_seed(3);
    KvCache cache(kShape, at::kFloat);
    Mirror mirror;
    append(cache, mirror, 0, 3);
    append(cache, mirror, 1, 7);
    append(cache, mirror, 2, 5);
    cache.remove(gone);
    for (auto* side : {&mirror.key, &mirror.value}) {
      for (auto& slots : *side) {
        slots[static_cast<size_t>(gone)] = slots.back();
        slots.pop_back();
      }
    }
    expect_equal(cache, mirror);
    append(cache, mirror, 0, 2);  // the moved one goes on at its own length
    append(cache, mirror, 1, 1);
    expect_equal(cache, mirror);
  }
}

TEST(KvCache, RefusesMoreThanItsCapacity) {
  KvCache cache(kShape, at::kFloat);
  Mirror mirror;
  append(cache, mirror, 0, 12);
  const at::Tensor one = at::rand({1, 2, 1, 5});
  EXPECT_THROW(cache.store(0, 0, one, one), std::logic_error);
}

TEST(KvCache, TellsItsSizeInBytes) {
  EXPECT_EQ(KvCache::size_bytes(kShape, at::kFloat), 2 * 2 * 3 * 2 * 12 * 5 * 4);
  EXPECT_EQ(KvCache::size_bytes(kShape, at::kBFloat16), 2 * 2 * 3 * 2 * 12 * 5 * 2);
}

}  // namespace
}  // namespace blockscope
