#include "kernels/cuda/small_operators_device.h"

#include <ATen/ops/empty.h>

#include <bit>

#include "kernels/cuda/device_support.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

void check_page_size(const char* op, int64_t page_size) {
  TORCH_CHECK(page_size > 0, op, ": page_size: expected at least 1, got ", page_size);
}

void check_dim(const char* op, int64_t dim) {
  TORCH_CHECK(dim <= kMaxDeviceDim, op, ": q: expected head_dim up to ", kMaxDeviceDim,
              " on a GPU, got ", dim, ". HINT: run this model on the CPU");
}

at::Tensor scores_of(const char* op, const DeviceQueue& queue, const at::Tensor& q,
                     const PageBounds& bounds, const at::Tensor& ext_len, int64_t page_size,
                     bool per_token) {
  check_page_size(op, page_size);
  check_query(op, q, q.device());
  const AttentionSizes sizes =
      check_attention(op, q, "max", bounds.max, "min", &bounds.min, q.device());
  const int64_t pages = bounds.max.size(2);
  const std::vector<int64_t> lengths =
      check_lengths(op, "ext_len", ext_len, sizes.sequences, pages * page_size);
  const int64_t sets = per_token ? sizes.queries : 1;
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  const at::Tensor scores = at::empty({sizes.sequences, sizes.kv_heads, sets, pages}, floats);
  for_batches(scores.numel() > 0 ? sizes.sequences : 0, [&](int64_t first, int64_t count) {
    PageScoresCall call;
    call.type = device_float(q);
    call.sequences = static_cast<int>(count);
    call.kv_heads = device_int(op, "KV heads", sizes.kv_heads);
    call.group = device_int(op, "query heads", sizes.group);
    call.tokens = device_int(op, "queries", per_token ? 1 : sizes.queries);
    call.num_sets = device_int(op, "queries", sets);
    call.dim = device_int(op, "head_dim", sizes.dim);
    call.pages = device_int(op, "pages", pages);
    call.page_size = page_size;
    call.q = device_rows(q.narrow(0, first, count));
    call.max = device_rows(bounds.max.narrow(0, first, count));
    call.min = device_rows(bounds.min.narrow(0, first, count));
    const at::Tensor parts = at::empty({count, sizes.kv_heads, sets, 2, sizes.dim}, floats);
    call.parts = parts.mutable_data_ptr<float>();
    call.scores = from_sequence<float>(scores, first);
    set_lengths(call, lengths, first, count);
    queue.launch(queue.kernels.page_scores, call);
  });
  return per_token ? scores : scores.squeeze(2);
}

// Arguments of block_topk and its kin, checked.
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
  check_dim(op, sizes.dim);
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

// Tokens whose mean probabilities are held at a time: 64 MiB of them, or one token's.
int64_t tokens_at_once(const TopKProblem& problem, int64_t sequences, int64_t keys) {
  const int64_t bytes = sequences * problem.sizes.kv_heads * std::max<int64_t>(keys, 1) * 4;
  return std::clamp<int64_t>((int64_t{64} << 20) / bytes, 1, problem.sizes.queries);
}

// The sets of all tokens together, [S, K, k], or of each, [S, K, T, k].
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

at::Tensor prefill_attention_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const at::Tensor& len, int64_t block_length,
                                double scale, int64_t query_start) {
  constexpr const char* kOp = "prefill_attention";
  check_query(kOp, q, q.device());
  const AttentionSizes sizes = check_attention(kOp, q, "k", k, "v", &v, q.device());
  check_dim(kOp, sizes.dim);
  const std::vector<int64_t> lengths =
      check_lengths(kOp, "len", len, sizes.sequences, sizes.external_keys);
  TORCH_CHECK(block_length > 0, kOp, ": block_length: expected > 0, got ", block_length,
              ". HINT: 1 is causal attention");
  TORCH_CHECK(query_start >= 0, kOp, ": query_start: expected >= 0, got ", query_start);
  device_int(kOp, "keys", sizes.external_keys);
  device_int(kOp, "rows of a KV head", sizes.group * sizes.queries);
  const at::Tensor out = at::empty(q.sizes(), q.options());
  for_batches(out.numel() > 0 ? sizes.sequences : 0, [&](int64_t first, int64_t count) {
    PrefillCall call;
    call.type = device_float(q);
    call.sequences = static_cast<int>(count);
    call.heads = device_int(kOp, "query heads", sizes.heads);
    call.group = static_cast<int>(sizes.group);
    call.queries = device_int(kOp, "queries", sizes.queries);
    call.dim = static_cast<int>(sizes.dim);
    call.block_length = block_length;
    call.query_start = query_start;
    call.scale_log2 = static_cast<float>(scale * 1.4426950408889634);
    call.q = device_rows(q.narrow(0, first, count));
    call.k = device_rows(k.narrow(0, first, count));
    call.v = device_rows(v.narrow(0, first, count));
    call.out = from_sequence<char>(out, first);
    set_lengths(call, lengths, first, count);
    queue.launch(queue.kernels.prefill, call);
  });
  return out;
}

MergedAttention merge_attention_on(const DeviceQueue& queue, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& lses) {
  constexpr const char* kOp = "merge_attention";
  check_merge_parts(kOp, outputs, lses);
  TORCH_CHECK(outputs.size() <= kMaxMergeParts, kOp, ": outputs: expected at most ", kMaxMergeParts,
              " parts on a GPU, got ", outputs.size(), ". HINT: merge them in groups");
  const at::IntArrayRef sizes = outputs[0].sizes();
  MergedAttention merged;
  merged.out = at::empty(sizes, outputs[0].options());
  merged.lse = at::empty(sizes.slice(0, sizes.size() - 1), lses[0].options());
  MergeCall call;
  call.type = device_float(outputs[0]);
  call.parts = static_cast<int>(outputs.size());
  call.dim = device_int(kOp, "D", sizes.back());
  call.rows = merged.lse.numel();
  call.out = merged.out.mutable_data_ptr();
  call.lse = merged.lse.mutable_data_ptr<float>();
  std::vector<at::Tensor> contiguous;  // alive until the launch
  for (size_t i = 0; i < outputs.size(); ++i) {
    contiguous.push_back(outputs[i].contiguous());
    call.outputs[i] = contiguous.back().const_data_ptr();
    contiguous.push_back(lses[i].contiguous());
    call.lses[i] = contiguous.back().const_data_ptr<float>();
  }
  if (call.rows > 0) queue.launch(queue.kernels.merge, call);
  return merged;
}

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

PageBounds page_bounds_on(const DeviceQueue& queue, const at::Tensor& k_ext,
                          const at::Tensor& ext_len, int64_t page_size) {
  constexpr const char* kOp = "page_bounds";
  check_page_size(kOp, page_size);
  TORCH_CHECK(k_ext.defined() && k_ext.dim() == 4, kOp,
              ": k_ext: expected shape [S, K, N, D], got ",
              k_ext.defined() ? k_ext.sizes() : at::IntArrayRef{});
  check_query(kOp, k_ext, k_ext.device());
  const int64_t pages = (k_ext.size(2) + page_size - 1) / page_size;
  const std::vector<int64_t> lengths =
      check_lengths(kOp, "ext_len", ext_len, k_ext.size(0), k_ext.size(2));
  const std::vector<int64_t> shape = {k_ext.size(0), k_ext.size(1), pages, k_ext.size(3)};
  const PageBounds bounds{at::empty(shape, k_ext.options()), at::empty(shape, k_ext.options())};
  for_batches(bounds.max.numel() > 0 ? shape[0] : 0, [&](int64_t first, int64_t count) {
    BoundsCall call;
    call.type = device_float(k_ext);
    call.sequences = static_cast<int>(count);
    call.kv_heads = device_int(kOp, "KV heads", shape[1]);
    call.dim = device_int(kOp, "head_dim", shape[3]);
    call.pages = device_int(kOp, "pages", pages);
    call.page_size = page_size;
    call.k_ext = device_rows(k_ext.narrow(0, first, count));
    call.max = from_sequence<char>(bounds.max, first);
    call.min = from_sequence<char>(bounds.min, first);
    set_lengths(call, lengths, first, count);
    queue.launch(queue.kernels.bounds, call);
  });
  return bounds;
}

at::Tensor page_scores_on(const DeviceQueue& queue, const at::Tensor& q, const PageBounds& bounds,
                          const at::Tensor& ext_len, int64_t page_size) {
  return scores_of("page_scores", queue, q, bounds, ext_len, page_size, false);
}

at::Tensor token_page_scores_on(const DeviceQueue& queue, const at::Tensor& q,
                                const PageBounds& bounds, const at::Tensor& ext_len,
                                int64_t page_size) {
  return scores_of("token_page_scores", queue, q, bounds, ext_len, page_size, true);
}

at::Tensor cross_step_similarity_on(const DeviceQueue& queue, const at::Tensor& a,
                                    const at::Tensor& b) {
  constexpr const char* kOp = "cross_step_similarity";
  TORCH_CHECK(a.defined() && a.dim() > 0, kOp, ": a: expected a tensor [..., D]");
  const at::ScalarType type = a.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, kOp,
              ": a: expected dtype Float, Half or BFloat16 on a GPU, got ", type);
  check_tensor(kOp, "b", b, type, a.device());
  check_shape(kOp, "b", b, a.sizes());
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  const at::IntArrayRef sizes = a.sizes();
  const at::Tensor result =
      at::empty(sizes.slice(0, sizes.size() - 1), a.options().dtype(at::kFloat));
  SimilarityCall call;
  call.type = device_float(a);
  call.dim = device_int(kOp, "D", sizes.back());
  call.rows = result.numel();
  call.a = left.const_data_ptr();
  call.b = right.const_data_ptr();
  call.cosines = result.mutable_data_ptr<float>();
  if (call.rows > 0) queue.launch(queue.kernels.similarity, call);
  return result;
}

}  // namespace blockscope
