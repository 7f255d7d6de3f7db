// Shared parts of block_topk and topk_sets: checked arguments, and the probabilities of the keys of
// one KV head, tile by tile, recomputed from the scores with the given lse. Internal to kernels.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/row_tile.h"
#include "kernels/shape_check.h"

namespace blockscope {

struct TopKArguments {
  AttentionSizes sizes;
  std::vector<int64_t> lengths;
  at::Tensor lse;  // [S, H, T] contiguous
  RawView queries;
  RawView keys;
  Element element;
  float scale;
};

TopKArguments check_topk(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                         const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale);

// The rows (t, g) of one KV head, t * G + g: all queries of a token are neighbours.
class ProbabilityRows {
 public:
  ProbabilityRows(const TopKArguments& arguments, int64_t sequence, int64_t kv_head, int64_t begin,
                  int64_t end)
      : arguments_(arguments),
        range_(key_range(arguments.keys, arguments.keys, sequence, kv_head)),
        tile_(best_tile_kernels(), arguments.element, end - begin, arguments.sizes.dim) {
    const AttentionSizes& sizes = arguments.sizes;
    const float* all_lse = arguments.lse.const_data_ptr<float>();
    for (int64_t row = begin; row < end; ++row) {
      const int64_t head = kv_head * sizes.group + row % sizes.group;
      const int64_t t = row / sizes.group;
      tile_.set_query(row - begin, arguments.queries.at(sequence, head, t));
      const float lse = all_lse[(sequence * sizes.heads + head) * sizes.queries + t];
      // lse -inf: all scores are -inf. The row then gives probability 0 instead of NaN.
      lse_[static_cast<size_t>(row - begin)] = lse == kNegativeInfinity ? -lse : lse;
    }
  }

  void load_tile(int64_t key, int64_t count) {
    scores_ = tile_.score_tile(range_, key, count);
    count_ = count;
  }

  // Per key of the loaded tile, the sum of probabilities over rows [first, first + num_rows).
  const std::array<float, kTileKeys>& sums(int64_t first, int64_t num_rows) {
    best_tile_kernels().probabilities(scores_ + first * kTileKeys, lse_.data() + first, num_rows,
                                      count_, arguments_.scale, sums_.data());
    return sums_;
  }

  // The same for num_tokens tokens of G rows each, from row 0. See
  // TileKernels::token_probabilities.
  void token_means(int64_t num_tokens, int64_t stride, float* means, float* totals) {
    best_tile_kernels().token_probabilities(scores_, lse_.data(), num_tokens,
                                            arguments_.sizes.group, count_, arguments_.scale,
                                            stride, means, totals);
  }

 private:
  const TopKArguments& arguments_;
  KeyRange range_;
  RowTile tile_;
  const float* scores_ = nullptr;
  int64_t count_ = 0;
  std::array<float, kMaxRows> lse_{};
  alignas(64) std::array<float, kTileKeys> sums_{};
};

}  // namespace blockscope
