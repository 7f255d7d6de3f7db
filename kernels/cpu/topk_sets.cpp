// topk_sets and token_topk walk the keys once for all sets of a KV head. A task takes the queries
// of as many tokens as fit a tile. It turns the scores of kChunkKeys keys at a time into the
// tokens' mean probabilities. It passes each token's probabilities to that token's selector, and
// adds them to the sums for the block's set.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/probability_rows.h"
#include "kernels/cpu/top_k_selector.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/operator.h"
#include "kernels/ops.h"

namespace blockscope {
namespace {

constexpr int64_t kChunkKeys = 1024;  // 4 KiB of means a token

// The keys to choose from.
struct SetsShape {
  int64_t sequences = 0;
  int64_t kv_heads = 0;
  int64_t group = 0;
  int64_t queries = 0;
  int64_t keys = 0;              // N
  std::vector<int64_t> lengths;  // [S]
};

// ProbabilityRows of the weights that split_attention kept: tokens [begin, ...) of one KV head.
class KeptWeightRows {
 public:
  KeptWeightRows(const ExternalWeights& kept, const at::Tensor& lse, const SetsShape& shape,
                 int64_t head, int64_t begin)
      : group_(shape.group),
        queries_(shape.queries),
        rows_(shape.group * shape.queries),
        begin_(begin),
        weights_(kept.weight.const_data_ptr<float>() + head * kept.weight.stride(1)),
        max_(kept.max.const_data_ptr<float>() + head * kept.max.stride(1)),
        lse_(static_cast<size_t>(rows_)),
        factors_(lse_.size()) {
    const float* from = lse.const_data_ptr<float>() + head * rows_;
    // lse -inf: all scores are -inf. The row then gives probability 0 instead of NaN.
    std::transform(from, from + rows_, lse_.begin(),
                   [](float x) { return x == kNegativeInfinity ? -x : x; });
  }

  void load_tile(int64_t key, int64_t count) {
    const int64_t first = key / kTileKeys * rows_;
    tile_ = weights_ + first * kTileKeys;
    count_ = count;
    best_tile_kernels().row_factors(max_ + first, lse_.data(), rows_, factors_.data());
  }

  void token_means(int64_t num_tokens, int64_t stride, float* means, float* totals) {
    best_tile_kernels().token_weights(tile_ + begin_ * kTileKeys, factors_.data() + begin_,
                                      num_tokens, queries_, group_, count_, stride, means, totals);
  }

 private:
  int64_t group_, queries_, rows_, begin_;
  const float* weights_;
  const float* max_;
  std::vector<float> lse_;
  std::vector<float> factors_;
  const float* tile_ = nullptr;
  int64_t count_ = 0;
};

// The sets of all KV heads of all sequences, and the values that tasks leave for the last step.
class SetsBuilder {
 public:
  SetsBuilder(SetsShape shape, int64_t k, TopKSets& result)
      : shape_(std::move(shape)),
        k_(k),
        result_(result),
        tokens_per_task_(std::max<int64_t>(1, kMaxRows / shape_.group)),
        num_tiles_((shape_.queries + tokens_per_task_ - 1) / tokens_per_task_),
        num_heads_(shape_.sequences * shape_.kv_heads),
        num_words_((shape_.keys + 63) / 64),
        totals_(at::zeros({num_heads_, num_tiles_, num_words_ * 64}, at::kFloat)),
        marks_(static_cast<size_t>(num_heads_ * num_tiles_ * num_words_)) {}

  // rows_of(KV head over all sequences, first token, tokens): ProbabilityRows or a similar type.
  template <class RowsOf>
  void run(const RowsOf& rows_of) {
    parallel_tasks(num_heads_ * num_tiles_, [&](int64_t task) {
      const int64_t begin = task % num_tiles_ * tokens_per_task_;
      const int64_t tokens = std::min(tokens_per_task_, shape_.queries - begin);
      auto rows = rows_of(task / num_tiles_, begin, tokens);
      walk(task, begin, tokens, rows);
    });
    parallel_tasks(num_heads_, [this](int64_t head) {
      select_block(head);
      count_union(head);
    });
  }

 private:
  int64_t length(int64_t head) const {
    return shape_.lengths[static_cast<size_t>(head / shape_.kv_heads)];
  }
  float* totals(int64_t task) { return totals_.mutable_data_ptr<float>() + task * num_words_ * 64; }
  uint64_t* marks(int64_t task) { return marks_.data() + task * num_words_; }

  template <class Rows>
  void walk(int64_t task, int64_t begin, int64_t tokens, Rows& rows) {
    const int64_t head = task / num_tiles_;
    // Kept between calls, because fresh pages cost more than a small operator.
    thread_local std::vector<float> means;
    thread_local std::vector<TopKSelector> best;
    means.resize(static_cast<size_t>(tokens * kChunkKeys));
    best.resize(static_cast<size_t>(tokens), TopKSelector(k_));
    for (TopKSelector& selector : best) selector.restart(k_);
    for (int64_t chunk = 0; chunk < length(head); chunk += kChunkKeys) {
      const int64_t end = std::min(chunk + kChunkKeys, length(head));
      for (int64_t key = chunk; key < end; key += kTileKeys) {
        rows.load_tile(key, std::min(kTileKeys, end - key));
        rows.token_means(tokens, kChunkKeys, means.data() + (key - chunk), totals(task) + key);
      }
      float guess = -1.0f;
      for (int64_t t = 0; t < tokens; ++t) {
        TopKSelector& selector = best[static_cast<size_t>(t)];
        // Tokens of a block mostly choose the same keys.
        const bool served = selector.push_range(means.data() + t * kChunkKeys, end - chunk,
                                                static_cast<int32_t>(chunk), guess);
        if (!served) guess = 0.8f * selector.kth();
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      TopKSelector& selector = best[static_cast<size_t>(t)];
      selector.mark(marks(task));
      if (!result_.token_index.defined()) continue;
      const int64_t set = (head * shape_.queries + begin + t) * k_;
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
    const auto num_rows = static_cast<float>(shape_.group * shape_.queries);
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

  SetsShape shape_;
  int64_t k_;
  TopKSets& result_;
  int64_t tokens_per_task_;
  int64_t num_tiles_;  // tasks per KV head
  int64_t num_heads_;  // S * K
  int64_t num_words_;
  at::Tensor totals_;            // [S * K, tiles, N in whole tiles] sums of probabilities
  std::vector<uint64_t> marks_;  // [S * K, tiles, words] positions in some token's set
};

TopKSets empty_sets(const SetsShape& shape, int64_t k, bool with_tokens) {
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  const auto integers = floats.dtype(at::kInt);
  TopKSets result;
  result.index = at::empty({shape.sequences, shape.kv_heads, k}, integers);
  result.probability = at::empty({shape.sequences, shape.kv_heads, k}, floats);
  result.union_size = at::empty({shape.sequences, shape.kv_heads}, integers);
  if (with_tokens) {
    result.token_index = at::empty({shape.sequences, shape.kv_heads, shape.queries, k}, integers);
    result.token_probability = at::empty(result.token_index.sizes(), floats);
  }
  return result;
}

}  // namespace

TopKSets topk_sets(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                   const at::Tensor& lse, int64_t k, double scale, bool with_tokens) {
  if (const DeviceScope device{q}) {
    return device.run(topk_sets_on, fallback::topk_sets, q, k_ext, ext_len, lse, k, scale,
                      with_tokens);
  }
  const TopKArguments arguments = check_topk("topk_sets", q, k_ext, ext_len, lse, k, scale);
  const AttentionSizes& sizes = arguments.sizes;
  TORCH_CHECK(sizes.group <= kMaxRows, "topk_sets: q: expected at most ", kMaxRows,
              " query heads per KV head, got ", sizes.group);
  const SetsShape shape{sizes.sequences, sizes.kv_heads,      sizes.group,
                        sizes.queries,   sizes.external_keys, arguments.lengths};
  TopKSets result = empty_sets(shape, k, with_tokens);
  SetsBuilder(shape, k, result).run([&](int64_t head, int64_t begin, int64_t tokens) {
    return ProbabilityRows(arguments, head / sizes.kv_heads, head % sizes.kv_heads,
                           begin * sizes.group, (begin + tokens) * sizes.group);
  });
  return result;
}

TopKSets topk_sets(const ExternalWeights& kept, const at::Tensor& ext_len, const at::Tensor& lse,
                   int64_t k, bool with_tokens) {
  constexpr const char* kOp = "topk_sets";
  check_cpu(kOp, "lse", lse, at::kFloat);
  check_shape(kOp, "lse", lse, {-1, -1, -1});
  check_cpu(kOp, "kept.weight", kept.weight, at::kFloat);
  check_shape(kOp, "kept.weight", kept.weight, {lse.size(0), -1, -1, -1, kTileKeys});
  const at::IntArrayRef sizes = kept.weight.sizes();
  check_cpu(kOp, "kept.max", kept.max, at::kFloat);
  check_shape(kOp, "kept.max", kept.max, sizes.slice(0, 4));
  TORCH_CHECK(kept.weight.is_contiguous() && kept.max.is_contiguous() && sizes[1] > 0 &&
                  lse.size(1) % sizes[1] == 0 && sizes[3] * sizes[1] == lse.size(1) * lse.size(2),
              kOp, ": kept: expected the weights that split_attention kept for these ", lse.size(1),
              " query heads and ", lse.size(2), " tokens, got weights of shape ", sizes);
  TORCH_CHECK(k > 0, kOp, ": k: expected > 0, got ", k);
  const int64_t keys = sizes[2] * kTileKeys;
  const SetsShape shape{
      sizes[0],    sizes[1], lse.size(1) / sizes[1],
      lse.size(2), keys,     check_lengths(kOp, "ext_len", ext_len, sizes[0], keys)};
  TopKSets result = empty_sets(shape, k, with_tokens);
  const at::Tensor normaliser = lse.contiguous();
  SetsBuilder(shape, k, result).run([&](int64_t head, int64_t begin, int64_t /*tokens*/) {
    return KeptWeightRows(kept, normaliser, shape, head, begin);
  });
  return result;
}

TokenTopK token_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                     const at::Tensor& lse, int64_t k, double scale) {
  if (const DeviceScope device{q}) {
    return device.run(token_topk_on, fallback::token_topk, q, k_ext, ext_len, lse, k, scale);
  }
  TopKSets sets = topk_sets(q, k_ext, ext_len, lse, k, scale, /*with_tokens=*/true);
  return {std::move(sets.token_index), std::move(sets.token_probability),
          std::move(sets.union_size)};
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m,
      "token_topk(Tensor q, Tensor k_ext, Tensor ext_len, Tensor lse, int k, float scale) -> "
      "(Tensor index, Tensor probability, Tensor union_size)",
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
         const at::Tensor& lse, int64_t k, double scale) {
        const TokenTopK r = token_topk(q, k_ext, ext_len, lse, k, scale);
        return std::tuple(r.index, r.probability, r.union_size);
      },
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor&, const at::Tensor&,
         int64_t k, double) {
        const meta::Shape heads = {q.sym_size(0), k_ext.sym_size(1)};
        const meta::Shape sets = {q.sym_size(0), k_ext.sym_size(1), q.sym_size(2), c10::SymInt(k)};
        return std::tuple(meta::empty(q, sets, at::kInt), meta::empty(q, sets, at::kFloat),
                          meta::empty(q, heads, at::kInt));
      });
}

}  // namespace blockscope
