// topk_sets and token_topk: the keys are walked once for all the sets of a KV head. A task takes
// the queries of as many tokens as fit a tile, turns the scores of kChunkKeys keys at a time into
// the tokens' mean probabilities, hands each token's to its selector, and adds all of them to the
// sums that the block's set is chosen from.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/cpu_support.h"
#include "kernels/ops.h"
#include "kernels/probability_rows.h"
#include "kernels/top_k_selector.h"

namespace blockscope {
namespace {

constexpr int64_t kChunkKeys = 1024;  // 4 KiB of means a token

// The sets of all KV heads of all sequences, and what the tasks leave for the last step.
class SetsBuilder {
 public:
  SetsBuilder(const TopKArguments& arguments, int64_t k, TopKSets& result)
      : arguments_(arguments),
        k_(k),
        result_(result),
        tokens_per_task_(std::max<int64_t>(1, kMaxRows / arguments.sizes.group)),
        num_tiles_((arguments.sizes.queries + tokens_per_task_ - 1) / tokens_per_task_),
        num_heads_(arguments.sizes.sequences * arguments.sizes.kv_heads),
        num_words_((arguments.sizes.external_keys + 63) / 64),
        totals_(at::zeros({num_heads_, num_tiles_, num_words_ * 64}, at::kFloat)),
        marks_(static_cast<size_t>(num_heads_ * num_tiles_ * num_words_)) {}

  void run() {
    parallel_tasks(num_heads_ * num_tiles_, [this](int64_t task) { walk(task); });
    parallel_tasks(num_heads_, [this](int64_t head) {
      select_block(head);
      count_union(head);
    });
  }

 private:
  int64_t length(int64_t head) const {
    return arguments_.lengths[static_cast<size_t>(head / arguments_.sizes.kv_heads)];
  }
  float* totals(int64_t task) { return totals_.mutable_data_ptr<float>() + task * num_words_ * 64; }
  uint64_t* marks(int64_t task) { return marks_.data() + task * num_words_; }

  void walk(int64_t task) {
    const AttentionSizes& sizes = arguments_.sizes;
    const int64_t head = task / num_tiles_;
    const int64_t begin = task % num_tiles_ * tokens_per_task_;
    const int64_t tokens = std::min(tokens_per_task_, sizes.queries - begin);
    ProbabilityRows rows(arguments_, head / sizes.kv_heads, head % sizes.kv_heads,
                         begin * sizes.group, (begin + tokens) * sizes.group);
    // Kept between calls: fresh pages would cost more than a small op.
    thread_local std::vector<float> means;
    means.resize(static_cast<size_t>(tokens * kChunkKeys));
    std::vector<TopKSelector> best(static_cast<size_t>(tokens), TopKSelector(k_));
    for (int64_t chunk = 0; chunk < length(head); chunk += kChunkKeys) {
      const int64_t end = std::min(chunk + kChunkKeys, length(head));
      for (int64_t key = chunk; key < end; key += kTileKeys) {
        rows.load_tile(key, std::min(kTileKeys, end - key));
        rows.token_means(tokens, kChunkKeys, means.data() + (key - chunk), totals(task) + key);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        best[static_cast<size_t>(t)].push_range(means.data() + t * kChunkKeys, end - chunk,
                                                static_cast<int32_t>(chunk));
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      TopKSelector& selector = best[static_cast<size_t>(t)];
      selector.mark(marks(task));
      if (!result_.token_index.defined()) continue;
      const int64_t set = (head * sizes.queries + begin + t) * k_;
      selector.write(result_.token_index.mutable_data_ptr<int32_t>() + set,
                     result_.token_probability.mutable_data_ptr<float>() + set);
    }
  }

  void select_block(int64_t head) {
    float* sums = totals(head * num_tiles_);
    for (int64_t tile = 1; tile < num_tiles_; ++tile) {
      const float* more = totals(head * num_tiles_ + tile);
      for (int64_t n = 0; n < length(head); ++n) sums[n] += more[n];
    }
    const auto num_rows = static_cast<float>(arguments_.sizes.group * arguments_.sizes.queries);
    for (int64_t n = 0; n < length(head); ++n) sums[n] /= num_rows;
    TopKSelector best(k_);
    best.push_range(sums, length(head), 0);
    best.write(result_.index.mutable_data_ptr<int32_t>() + head * k_,
               result_.probability.mutable_data_ptr<float>() + head * k_);
  }

  void count_union(int64_t head) {
    int64_t count = 0;
    for (int64_t word = 0; word < num_words_; ++word) {
      uint64_t any = 0;
      for (int64_t tile = 0; tile < num_tiles_; ++tile)
        any |= marks(head * num_tiles_ + tile)[word];
      count += std::popcount(any);
    }
    result_.union_size.mutable_data_ptr<int32_t>()[head] = static_cast<int32_t>(count);
  }

  const TopKArguments& arguments_;
  int64_t k_;
  TopKSets& result_;
  int64_t tokens_per_task_;
  int64_t num_tiles_;  // tasks a KV head
  int64_t num_heads_;  // S * K
  int64_t num_words_;
  at::Tensor totals_;            // [S * K, tiles, N in whole tiles] sums of probabilities
  std::vector<uint64_t> marks_;  // [S * K, tiles, words] positions in some token's set
};

}  // namespace

TopKSets topk_sets(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                   const at::Tensor& lse, int64_t k, double scale, bool with_tokens) {
  const TopKArguments arguments = check_topk("topk_sets", q, k_ext, ext_len, lse, k, scale);
  const AttentionSizes& sizes = arguments.sizes;
  TORCH_CHECK(sizes.group <= kMaxRows, "topk_sets: q: expected at most ", kMaxRows,
              " query heads per KV head, got ", sizes.group);
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  const auto integers = floats.dtype(at::kInt);
  TopKSets result;
  result.index = at::empty({sizes.sequences, sizes.kv_heads, k}, integers);
  result.probability = at::empty({sizes.sequences, sizes.kv_heads, k}, floats);
  result.union_size = at::empty({sizes.sequences, sizes.kv_heads}, integers);
  if (with_tokens) {
    result.token_index = at::empty({sizes.sequences, sizes.kv_heads, sizes.queries, k}, integers);
    result.token_probability =
        at::empty({sizes.sequences, sizes.kv_heads, sizes.queries, k}, floats);
  }
  SetsBuilder(arguments, k, result).run();
  return result;
}

TokenTopK token_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                     const at::Tensor& lse, int64_t k, double scale) {
  TopKSets sets = topk_sets(q, k_ext, ext_len, lse, k, scale, /*with_tokens=*/true);
  return {std::move(sets.token_index), std::move(sets.token_probability),
          std::move(sets.union_size)};
}

}  // namespace blockscope
