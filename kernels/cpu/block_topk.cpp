// block_topk: scores are recomputed tile by tile and turned into probabilities with the given lse,
// so nothing of size T * N is stored; the keys are split over tasks, and one mean per key is kept.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/probability_rows.h"
#include "kernels/cpu/top_k_selector.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/small_operators_device.h"
#include "kernels/ops.h"

namespace blockscope {

TopK block_topk(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                const at::Tensor& lse, int64_t k, double scale) {
  if (const DeviceScope device{q}) {
    if (!device.has_kernels()) {
      TopKSets sets = fallback::topk_sets(q, k_ext, ext_len, lse, k, scale, /*with_tokens=*/false);
      return {std::move(sets.index), std::move(sets.probability)};
    }
    return block_topk_on(device.queue(), q, k_ext, ext_len, lse, k, scale);
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

}  // namespace blockscope
