// block_topk and token_topk: scores are recomputed tile by tile and turned into probabilities with
// the given lse, so nothing of size T * N is stored. block_topk splits the keys over tasks and
// keeps one mean per key; token_topk splits the tokens and streams each token's means into a
// selector.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kernels/attention_state.h"
#include "kernels/cpu_support.h"
#include "kernels/ops.h"
#include "kernels/row_tile.h"
#include "kernels/shape_check.h"
#include "kernels/top_k_selector.h"

namespace blockscope {
namespace {

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
                         const at::Tensor& ext_len, const at::Tensor& lse, int64_t k,
                         double scale) {
  const AttentionSizes sizes = check_attention(op, q, "k_ext", k_ext, nullptr, nullptr);
  check_cpu(op, "lse", lse, at::kFloat);
  check_shape(op, "lse", lse, q.sizes().slice(0, 3));
  TORCH_CHECK(k > 0, op, ": k: expected > 0, got ", k);
  TORCH_CHECK(sizes.external_keys <= std::numeric_limits<int32_t>::max(), op,
              ": k_ext: expected at most 2^31 - 1 keys, got ", sizes.external_keys);
  return {sizes,
          check_lengths(op, "ext_len", ext_len, sizes.sequences, sizes.external_keys),
          lse.contiguous(),
          RawView(q),
          RawView(k_ext),
          element_of(q),
          static_cast<float>(scale)};
}

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
      // lse -inf: all scores are -inf, and the row gives nothing instead of NaN.
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

 private:
  const TopKArguments& arguments_;
  KeyRange range_;
  RowTile tile_;
  const float* scores_ = nullptr;
  int64_t count_ = 0;
  std::array<float, kMaxRows> lse_{};
  alignas(64) std::array<float, kTileKeys> sums_{};
};

}  // namespace

TopK block_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                const at::Tensor& lse, int64_t k, double scale) {
  const TopKArguments arguments = check_topk("block_topk", q, k_ext, ext_len, lse, k, scale);
  const AttentionSizes& sizes = arguments.sizes;
  const int64_t num_rows = sizes.group * sizes.queries;
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  TopK result{at::empty({sizes.sequences, sizes.kv_heads, k}, floats.dtype(at::kInt)),
              at::empty({sizes.sequences, sizes.kv_heads, k}, floats)};
  const at::Tensor mean = at::zeros({sizes.sequences, sizes.kv_heads, sizes.external_keys}, floats);
  float* means = mean.mutable_data_ptr<float>();

  constexpr int64_t kKeysPerTask = 1024;
  const int64_t num_chunks = (sizes.external_keys + kKeysPerTask - 1) / kKeysPerTask;
  const int64_t num_heads = sizes.sequences * sizes.kv_heads;
  parallel_tasks(num_heads * num_chunks, [&](int64_t task) {
    const int64_t head = task / num_chunks;
    const int64_t sequence = head / sizes.kv_heads;
    const int64_t begin = task % num_chunks * kKeysPerTask;
    const int64_t end =
        std::min(begin + kKeysPerTask, arguments.lengths[static_cast<size_t>(sequence)]);
    if (begin >= end) return;
    float* sums = means + head * sizes.external_keys;
    for (int64_t row = 0; row < num_rows; row += kMaxRows) {
      const int64_t row_end = std::min(row + kMaxRows, num_rows);
      ProbabilityRows rows(arguments, sequence, head % sizes.kv_heads, row, row_end);
      for (int64_t key = begin; key < end; key += kTileKeys) {
        const int64_t count = std::min(kTileKeys, end - key);
        rows.load_tile(key, count);
        const auto& tile = rows.sums(0, row_end - row);
        for (int64_t j = 0; j < count; ++j) sums[key + j] += tile[static_cast<size_t>(j)];
      }
    }
  });

  int32_t* index = result.index.mutable_data_ptr<int32_t>();
  float* probability = result.probability.mutable_data_ptr<float>();
  parallel_tasks(num_heads, [&](int64_t head) {
    TopKSelector best(k);
    const int64_t length = arguments.lengths[static_cast<size_t>(head / sizes.kv_heads)];
    for (int64_t n = 0; n < length; ++n) {
      best.push(means[head * sizes.external_keys + n] / static_cast<float>(num_rows),
                static_cast<int32_t>(n));
    }
    best.write(index + head * k, probability + head * k);
  });
  return result;
}

TokenTopK token_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                     const at::Tensor& lse, int64_t k, double scale) {
  const TopKArguments arguments = check_topk("token_topk", q, k_ext, ext_len, lse, k, scale);
  const AttentionSizes& sizes = arguments.sizes;
  TORCH_CHECK(sizes.group <= kMaxRows, "token_topk: q: expected at most ", kMaxRows,
              " query heads per KV head, got ", sizes.group);
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  const auto integers = floats.dtype(at::kInt);
  TokenTopK result{at::empty({sizes.sequences, sizes.kv_heads, sizes.queries, k}, integers),
                   at::empty({sizes.sequences, sizes.kv_heads, sizes.queries, k}, floats),
                   at::empty({sizes.sequences, sizes.kv_heads}, integers)};
  int32_t* index = result.index.mutable_data_ptr<int32_t>();
  float* probability = result.probability.mutable_data_ptr<float>();

  const int64_t tokens_per_task = std::max<int64_t>(1, kMaxRows / sizes.group);
  const int64_t num_tiles = (sizes.queries + tokens_per_task - 1) / tokens_per_task;
  const int64_t num_heads = sizes.sequences * sizes.kv_heads;
  parallel_tasks(num_heads * num_tiles, [&](int64_t task) {
    const int64_t head = task / num_tiles;
    const int64_t sequence = head / sizes.kv_heads;
    const int64_t begin = task % num_tiles * tokens_per_task;
    const int64_t end = std::min(begin + tokens_per_task, sizes.queries);
    const int64_t length = arguments.lengths[static_cast<size_t>(sequence)];
    ProbabilityRows rows(arguments, sequence, head % sizes.kv_heads, begin * sizes.group,
                         end * sizes.group);
    std::vector<TopKSelector> best(static_cast<size_t>(end - begin), TopKSelector(k));
    for (int64_t key = 0; key < length; key += kTileKeys) {
      const int64_t count = std::min(kTileKeys, length - key);
      rows.load_tile(key, count);
      for (int64_t t = 0; t < end - begin; ++t) {
        const auto& sums = rows.sums(t * sizes.group, sizes.group);
        for (int64_t j = 0; j < count; ++j) {
          best[static_cast<size_t>(t)].push(
              sums[static_cast<size_t>(j)] / static_cast<float>(sizes.group),
              static_cast<int32_t>(key + j));
        }
      }
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t set = (head * sizes.queries + t) * k;
      best[static_cast<size_t>(t - begin)].write(index + set, probability + set);
    }
  });

  int32_t* union_size = result.union_size.mutable_data_ptr<int32_t>();
  parallel_tasks(num_heads, [&](int64_t head) {
    std::vector<int32_t> all(index + head * sizes.queries * k,
                             index + (head + 1) * sizes.queries * k);
    std::sort(all.begin(), all.end());
    const auto first = std::upper_bound(all.begin(), all.end(), -1);  // behind the padding
    union_size[head] = static_cast<int32_t>(std::unique(first, all.end()) - first);
  });
  return result;
}

}  // namespace blockscope
