// Keys of a canvas against plain tensors in the order of positions.
#include "probe/caches/canvas_keys.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace blockscope {
namespace {

constexpr CanvasShape kShape{2, 3, 5, 17, 4};  // layers, KV heads, head_dim, length, block length

/// What the store should hold: [K, L, D] by layer.
struct Mirror {
  std::vector<at::Tensor> key, value;
  Mirror() {
    for (auto* side : {&key, &value}) *side = {at::zeros({3, 17, 5}), at::zeros({3, 17, 5})};
  }
};

void write(CanvasKeys& keys, Mirror& mirror, const std::vector<int64_t>& positions) {
  const at::Tensor index = at::tensor(positions, at::kLong);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const at::Tensor k = at::rand({1, 3, index.numel(), 5});
    const at::Tensor v = at::rand({1, 3, index.numel(), 5});
    keys.write_keys(layer, positions, k);
    keys.write_values(layer, positions, v);
    mirror.key[static_cast<size_t>(layer)].index_copy_(1, index, k[0]);
    mirror.value[static_cast<size_t>(layer)].index_copy_(1, index, v[0]);
  }
}

void expect_equal(const CanvasKeys& keys, const Mirror& mirror) {
  const int64_t begin = keys.block_start();
  const int64_t end = begin + kShape.block_length;
  for (int64_t layer = 0; layer < 2; ++layer) {
    const at::Tensor& key = mirror.key[static_cast<size_t>(layer)];
    const at::Tensor& value = mirror.value[static_cast<size_t>(layer)];
    const auto outside = [&](const at::Tensor& all) {
      return at::cat({all.narrow(1, 0, begin), all.narrow(1, end, kShape.length - end)}, 1);
    };
    EXPECT_TRUE(at::equal(keys.ordered_key(layer), key));
    EXPECT_TRUE(at::equal(keys.ordered_value(layer), value));
    EXPECT_TRUE(at::equal(keys.external_key(layer)[0], outside(key)));
    EXPECT_TRUE(at::equal(keys.external_value(layer)[0], outside(value)));
    EXPECT_TRUE(at::equal(keys.block_key(layer)[0], key.narrow(1, begin, 4)));
    EXPECT_TRUE(at::equal(keys.block_value(layer)[0], value.narrow(1, begin, 4)));
    EXPECT_TRUE(at::equal(keys.value_rows(layer, {0, 6, 16})[0],
                          value.index_select(1, at::tensor({0, 6, 16}, at::kLong))));
  }
}

TEST(CanvasKeys, EveryPositionKeepsItsLatestRowWhileBlocksComeAndGo) {
  CanvasKeys keys(kShape, at::kFloat);
  Mirror mirror;
  std::vector<int64_t> all(17);
  std::iota(all.begin(), all.end(), 0);
  for (const int64_t start : {5, 9, 13, 5, 0}) {
    keys.begin_block(start);
    expect_equal(keys, mirror);
    write(keys, mirror, all);
    expect_equal(keys, mirror);
    write(keys, mirror, {start, start + 1, start + 2, start + 3});
    write(keys, mirror, {0, 2, 4, 6, 8, 10, 12, 14, 15, 16});  // more spans than are copied as such
    write(keys, mirror, {start + 3});
    expect_equal(keys, mirror);
  }
}

TEST(CanvasKeys, PositionsInATensorAreThoseOfTheCurrentBlock) {
  CanvasKeys keys(kShape, at::kFloat);
  Mirror mirror;
  const at::Tensor positions = at::tensor({1, 4, 5, 8, 9, 15}, at::kLong);
  for (const int64_t start : {5, 9, 0}) {
    keys.begin_block(start);
    const at::Tensor k = at::rand({1, 3, positions.numel(), 5});
    keys.write_chosen_keys(1, positions, k);
    mirror.key[1].index_copy_(1, positions, k[0]);
    expect_equal(keys, mirror);
  }
}

TEST(CanvasKeys, ExternalAndBlockKeysAreViewsOfOneTensor) {
  CanvasKeys keys(kShape, at::kFloat);
  keys.begin_block(5);
  EXPECT_EQ(keys.external_key(1).data_ptr(), keys.all_keys(1).data_ptr());
  EXPECT_TRUE(keys.block_value(0).is_alias_of(keys.all_values(0)));
  EXPECT_EQ(CanvasKeys::size_bytes(kShape, at::kBFloat16), 2 * 2 * 3 * 17 * 5 * 2);
}

}  // namespace
}  // namespace blockscope
