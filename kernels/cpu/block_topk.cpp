// block_topk recomputes scores tile by tile and turns them into probabilities with the given lse,
// so it stores nothing of size T * N. Tasks share the keys, and one mean per key is kept.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/probability_rows.h"
#include "kernels/cpu/top_k_selector.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/operator.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"

namespace blockscope {

TopK block_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                const at::Tensor& lse, int64_t k, double scale) {
  if (const DeviceScope device{q}) {
    return device.run(block_topk_on, fallback::block_topk, q, k_ext, ext_len, lse, k, scale);
  }
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
    float* sums = means + head * sizes.external_keys;
    for (int64_t n = 0; n < length; ++n) sums[n] /= static_cast<float>(num_rows);
    best.push_range(sums, length, 0);
    best.write(index + head * k, probability + head * k);
  });
  return result;
}

// --- on a device

namespace {

// Checked arguments of block_topk and related operators.
struct TopKProblem {
  const char* op;
  const DeviceQueue& queue;
  at::Tensor q, k_ext, lse;
  AttentionSizes sizes;
  std::vector<int64_t> lengths;
  int64_t k;
  double scale;
};

TopKProblem check_topk_problem(const char* op, const DeviceQueue& queue, const at::Tensor& q,
                               const at::Tensor& k_ext, const at::Tensor& ext_len,
                               const at::Tensor& lse, int64_t k, double scale) {
  check_query(op, q, q.device());
  const AttentionSizes sizes = check_attention(op, q, "k_ext", k_ext, nullptr, nullptr, q.device());
  check_device_dim(op, sizes.dim);
  check_tensor(op, "lse", lse, at::kFloat, q.device());
  check_shape(op, "lse", lse, q.sizes().slice(0, 3));
  TORCH_CHECK(k > 0, op, ": k: expected > 0, got ", k);
  for (const int64_t size : {sizes.external_keys, k, sizes.group * sizes.queries}) {
    device_int(op, "keys, k or rows", size);
  }
  return {op,
          queue,
          q,
          k_ext,
          lse.contiguous(),
          sizes,
          check_lengths(op, "ext_len", ext_len, sizes.sequences, sizes.external_keys),
          k,
          scale};
}

// Number of tokens with mean probabilities in memory at a time: at most 64 MiB, or one token's.
int64_t tokens_at_once(const TopKProblem& problem, int64_t sequences, int64_t keys) {
  const int64_t bytes = sequences * problem.sizes.kv_heads * std::max<int64_t>(keys, 1) * 4;
  return std::clamp<int64_t>((int64_t{64} << 20) / bytes, 1, problem.sizes.queries);
}

// The sets of all tokens together, [S, K, k], or of each token, [S, K, T, k].
void select_sets(const TopKProblem& problem, bool per_token, const at::Tensor& index,
                 const at::Tensor& probability) {
  const AttentionSizes& sizes = problem.sizes;
  const at::TensorOptions floats = problem.q.options().dtype(at::kFloat);
  const bool any = sizes.heads * sizes.queries > 0;
  for_batches(any ? sizes.sequences : 0, [&](int64_t first, int64_t count) {
    MeansCall means;
    means.type = device_float(problem.q);
    means.sequences = static_cast<int>(count);
    means.heads = static_cast<int>(sizes.heads);
    means.kv_heads = static_cast<int>(sizes.kv_heads);
    means.group = static_cast<int>(sizes.group);
    means.queries = static_cast<int>(sizes.queries);
    means.dim = static_cast<int>(sizes.dim);
    means.per_token = per_token;
    means.scale = static_cast<float>(problem.scale);
    means.scale_log2 = static_cast<float>(problem.scale * 1.4426950408889634);
    means.q = device_rows(problem.q.narrow(0, first, count));
    means.k_ext = device_rows(problem.k_ext.narrow(0, first, count));
    means.lse = from_sequence<float>(problem.lse, first);
    set_lengths(means, problem.lengths, first, count);
    means.max_length = *std::max_element(means.lengths, means.lengths + count);
    TopKCall best;
    best.sequences = means.sequences;
    best.rows_per_sequence = means.kv_heads;
    best.sets_per_head = per_token ? means.queries : 1;
    best.k = static_cast<int>(problem.k);
    best.max_length = means.max_length;
    best.padded = static_cast<int>(std::bit_ceil(
        static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(best.k, best.max_length)))));
    best.index = from_sequence<int32_t>(index, first);
    best.probability = from_sequence<float>(probability, first);
    set_lengths(best, problem.lengths, first, count);
    const int64_t step = per_token ? tokens_at_once(problem, count, means.max_length) : 1;
    for (int64_t token = 0; token < best.sets_per_head; token += step) {
      means.first_token = static_cast<int>(token);
      means.num_sets = static_cast<int>(std::min<int64_t>(step, best.sets_per_head - token));
      const int64_t rows = count * sizes.kv_heads * means.num_sets;
      const at::Tensor values = at::empty({rows, means.max_length}, floats);
      const int64_t outside = best.padded > kMostSortedInShared ? best.padded : 0;
      const at::Tensor entries = at::empty({rows, outside}, floats.dtype(at::kLong));
      means.means = values.mutable_data_ptr<float>();
      if (means.max_length > 0) problem.queue.launch(problem.queue.kernels.means, means);
      best.first_set = means.first_token;
      best.num_sets = means.num_sets;
      best.means = means.means;
      best.entries = reinterpret_cast<uint64_t*>(entries.mutable_data_ptr<int64_t>());
      problem.queue.launch(problem.queue.kernels.top_k, best);
    }
  });
}

TopKSets sets_of(const TopKProblem& problem, bool block, bool tokens) {
  const AttentionSizes& sizes = problem.sizes;
  const at::TensorOptions floats = problem.q.options().dtype(at::kFloat);
  const at::TensorOptions integers = floats.dtype(at::kInt);
  TopKSets result;
  if (block) {
    result.index = at::empty({sizes.sequences, sizes.kv_heads, problem.k}, integers);
    result.probability = at::empty(result.index.sizes(), floats);
    select_sets(problem, false, result.index, result.probability);
  }
  if (!tokens) return result;
  result.token_index =
      at::empty({sizes.sequences, sizes.kv_heads, sizes.queries, problem.k}, integers);
  result.token_probability = at::empty(result.token_index.sizes(), floats);
  select_sets(problem, true, result.token_index, result.token_probability);
  result.union_size = at::empty({sizes.sequences, sizes.kv_heads}, integers);
  UnionCall call;
  call.heads = device_int(problem.op, "KV heads", sizes.sequences * sizes.kv_heads);
  call.words = static_cast<int>((sizes.external_keys + 31) / 32);
  call.per_head = sizes.queries * problem.k;
  call.index = result.token_index.const_data_ptr<int32_t>();
  const at::Tensor bits = at::empty({call.heads, call.words}, integers);
  call.bits = reinterpret_cast<uint32_t*>(bits.mutable_data_ptr<int32_t>());
  call.sizes = result.union_size.mutable_data_ptr<int32_t>();
  if (call.heads > 0) problem.queue.launch(problem.queue.kernels.count_union, call);
  return result;
}

}  // namespace

TopK block_topk_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                   const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale) {
  const TopKSets sets = sets_of(
      check_topk_problem("block_topk", queue, q, k_ext, ext_len, lse, k, scale), true, false);
  return {sets.index, sets.probability};
}

TokenTopK token_topk_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                        const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale) {
  const TopKSets sets = sets_of(
      check_topk_problem("token_topk", queue, q, k_ext, ext_len, lse, k, scale), false, true);
  return {sets.token_index, sets.token_probability, sets.union_size};
}

// Reads the keys for the block's set and for the tokens' sets.
TopKSets topk_sets_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                      const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale,
                      bool with_tokens) {
  TopKSets sets =
      sets_of(check_topk_problem("topk_sets", queue, q, k_ext, ext_len, lse, k, scale), true, true);
  if (!with_tokens) {
    sets.token_index = at::Tensor();
    sets.token_probability = at::Tensor();
  }
  return sets;
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m,
      "block_topk(Tensor q, Tensor k_ext, Tensor ext_len, Tensor lse, int k, float scale) -> "
      "(Tensor index, Tensor probability)",
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
         const at::Tensor& lse, int64_t k, double scale) {
        const TopK r = block_topk(q, k_ext, ext_len, lse, k, scale);
        return std::tuple(r.index, r.probability);
      },
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor&, const at::Tensor&,
         int64_t k, double) {
        const meta::Shape shape = {q.sym_size(0), k_ext.sym_size(1), c10::SymInt(k)};
        return std::tuple(meta::empty(q, shape, at::kInt), meta::empty(q, shape, at::kFloat));
      });
}

}  // namespace blockscope
