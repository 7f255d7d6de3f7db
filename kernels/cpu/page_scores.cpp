// Quest's pages: channel-wise bounds of groups of keys, and the bound of a score from them.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/cpu_support.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/operator.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

int64_t num_pages(int64_t keys, int64_t page_size) { return (keys + page_size - 1) / page_size; }

void check_page_size(const char* op, int64_t page_size) {
  TORCH_CHECK(page_size > 0, op, ": page_size: expected at least 1, got ", page_size);
}

// Means over `rows` queries of their positive parts and of their negative parts.
struct SignedParts {
  std::vector<float> positive, negative;  // [D]
};

template <class Scalar>
void add_parts(const char* query, int64_t dim, SignedParts& parts) {
  const Scalar* values = reinterpret_cast<const Scalar*>(query);
  for (int64_t d = 0; d < dim; ++d) {
    const float value = static_cast<float>(values[d]);
    parts.positive[static_cast<size_t>(d)] += value > 0.0f ? value : 0.0f;
    parts.negative[static_cast<size_t>(d)] += value > 0.0f ? 0.0f : value;  // NaN goes here
  }
}

// Bit operations instead of c10's conversion, so the compiler vectorises the loops below.
inline float to_float(float value) { return value; }
inline float to_float(at::Half value) { return static_cast<float>(value); }
inline float to_float(at::BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16);
}

template <class Scalar>
float page_score(const SignedParts& parts, const Scalar* max, const Scalar* min, int64_t dim) {
  constexpr int64_t kLanes = 16;  // partial sums: fixed order, no dependency chain
  float sums[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto i = static_cast<size_t>(d + lane);
      sums[lane] += parts.positive[i] * to_float(max[i]) + parts.negative[i] * to_float(min[i]);
    }
  }
  float total = 0.0f;
  for (; d < dim; ++d) {
    const auto i = static_cast<size_t>(d);
    total += parts.positive[i] * to_float(max[i]) + parts.negative[i] * to_float(min[i]);
  }
  for (const float sum : sums) total += sum;
  return total;
}

// Calls `work` with a value of the C++ type. check_query has refused other types.
template <class Work>
void with_type(at::ScalarType type, const Work& work) {
  if (type == at::kFloat) {
    work(float{});
  } else if (type == at::kHalf) {
    work(at::Half{});
  } else {
    work(at::BFloat16{});
  }
}

// Scores of `num_sets` groups of tokens per KV head: one group of T tokens, or T groups of one.
at::Tensor scores_of(const char* op, const at::Tensor& q, const PageBounds& bounds,
                     const at::Tensor& ext_len, int64_t page_size, bool per_token) {
  check_page_size(op, page_size);
  const AttentionSizes sizes = check_attention(op, q, "max", bounds.max, "min", &bounds.min);
  const int64_t pages = bounds.max.size(2);
  const std::vector<int64_t> lengths =
      check_lengths(op, "ext_len", ext_len, sizes.sequences, pages * page_size);
  const int64_t num_sets = per_token ? sizes.queries : 1;
  const int64_t tokens = per_token ? 1 : sizes.queries;
  const RawView queries(q), max(bounds.max), min(bounds.min);
  const at::Tensor scores = at::full({sizes.sequences, sizes.kv_heads, num_sets, pages},
                                     kNegativeInfinity, at::TensorOptions().dtype(at::kFloat));
  float* out = scores.mutable_data_ptr<float>();
  with_type(q.scalar_type(), [&](auto type) {
    using Scalar = decltype(type);
    parallel_tasks(sizes.sequences * sizes.kv_heads * num_sets, [&](int64_t task) {
      const int64_t set = task % num_sets;
      const int64_t kv_head = task / num_sets % sizes.kv_heads;
      const int64_t sequence = task / num_sets / sizes.kv_heads;
      SignedParts parts{std::vector<float>(static_cast<size_t>(sizes.dim)),
                        std::vector<float>(static_cast<size_t>(sizes.dim))};
      for (int64_t g = 0; g < sizes.group; ++g) {
        for (int64_t t = set * tokens; t < (set + 1) * tokens; ++t) {
          add_parts<Scalar>(queries.at(sequence, kv_head * sizes.group + g, t), sizes.dim, parts);
        }
      }
      const float count = static_cast<float>(sizes.group * tokens);
      for (float& value : parts.positive) value /= count;
      for (float& value : parts.negative) value /= count;
      const int64_t used = num_pages(lengths[static_cast<size_t>(sequence)], page_size);
      for (int64_t page = 0; page < used; ++page) {
        out[task * pages + page] =
            page_score(parts, reinterpret_cast<const Scalar*>(max.at(sequence, kv_head, page)),
                       reinterpret_cast<const Scalar*>(min.at(sequence, kv_head, page)), sizes.dim);
      }
    });
  });
  return per_token ? scores : scores.squeeze(2);
}

// `most` and `least`: [D] scratch. Widening is exact, so the bounds are values of the keys.
template <class Scalar>
void bound_page(const RawView& keys, int64_t sequence, int64_t kv_head, int64_t begin, int64_t end,
                int64_t dim, float* most, float* least, Scalar* max, Scalar* min) {
  for (int64_t key = begin; key < end; ++key) {
    const auto* row = reinterpret_cast<const Scalar*>(keys.at(sequence, kv_head, key));
    if (key == begin) {
      for (int64_t d = 0; d < dim; ++d) most[d] = least[d] = to_float(row[d]);
      continue;
    }
    for (int64_t d = 0; d < dim; ++d) {
      // The comparison keeps NaN: a page with a NaN has no bound.
      const float value = to_float(row[d]);
      most[d] = value <= most[d] || most[d] != most[d] ? most[d] : value;
      least[d] = value >= least[d] || least[d] != least[d] ? least[d] : value;
    }
  }
  std::copy_n(most, dim, max);
  std::copy_n(least, dim, min);
}

}  // namespace

PageBounds page_bounds(const at::Tensor& k_ext, const at::Tensor& ext_len, int64_t page_size) {
  constexpr const char* kOp = "page_bounds";
  if (const DeviceScope device{k_ext}) {
    return device.run(page_bounds_on, fallback::page_bounds, k_ext, ext_len, page_size);
  }
  check_page_size(kOp, page_size);
  TORCH_CHECK(k_ext.defined() && k_ext.dim() == 4, kOp,
              ": k_ext: expected shape [S, K, N, D], got ",
              k_ext.defined() ? k_ext.sizes() : at::IntArrayRef{});
  check_query(kOp, k_ext);
  const int64_t kv_heads = k_ext.size(1);
  const int64_t dim = k_ext.size(3);
  const int64_t pages = num_pages(k_ext.size(2), page_size);
  const std::vector<int64_t> lengths =
      check_lengths(kOp, "ext_len", ext_len, k_ext.size(0), k_ext.size(2));
  const RawView keys(k_ext);
  const std::vector<int64_t> shape = {k_ext.size(0), kv_heads, pages, dim};
  const PageBounds bounds{at::zeros(shape, k_ext.options()), at::zeros(shape, k_ext.options())};
  with_type(k_ext.scalar_type(), [&](auto type) {
    using Scalar = decltype(type);
    Scalar* max = bounds.max.mutable_data_ptr<Scalar>();
    Scalar* min = bounds.min.mutable_data_ptr<Scalar>();
    parallel_tasks(k_ext.size(0) * kv_heads, [&](int64_t head) {
      const int64_t sequence = head / kv_heads;
      const int64_t length = lengths[static_cast<size_t>(sequence)];
      std::vector<float> scratch(static_cast<size_t>(2 * dim));
      for (int64_t begin = 0; begin < length; begin += page_size) {
        const int64_t at = (head * pages + begin / page_size) * dim;
        bound_page(keys, sequence, head % kv_heads, begin, std::min(begin + page_size, length), dim,
                   scratch.data(), scratch.data() + dim, max + at, min + at);
      }
    });
  });
  return bounds;
}

at::Tensor page_scores(const at::Tensor& q, const PageBounds& bounds, const at::Tensor& ext_len,
                       int64_t page_size) {
  if (const DeviceScope device{q}) {
    return device.run(page_scores_on, fallback::page_scores, q, bounds, ext_len, page_size);
  }
  return scores_of("page_scores", q, bounds, ext_len, page_size, false);
}

at::Tensor token_page_scores(const at::Tensor& q, const PageBounds& bounds,
                             const at::Tensor& ext_len, int64_t page_size) {
  if (const DeviceScope device{q}) {
    return device.run(token_page_scores_on, fallback::token_page_scores, q, bounds, ext_len,
                      page_size);
  }
  return scores_of("token_page_scores", q, bounds, ext_len, page_size, true);
}

// --- on a device

namespace {

at::Tensor device_scores(const char* op, const DeviceQueue& queue, const at::Tensor& q,
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

}  // namespace

PageBounds page_bounds_on(const DeviceQueue& queue, const at::Tensor& k_ext,
                          const at::Tensor& ext_len, int64_t page_size) {
  constexpr const char* kOp = "page_bounds";
  check_page_size(kOp, page_size);
  TORCH_CHECK(k_ext.defined() && k_ext.dim() == 4, kOp,
              ": k_ext: expected shape [S, K, N, D], got ",
              k_ext.defined() ? k_ext.sizes() : at::IntArrayRef{});
  check_query(kOp, k_ext, k_ext.device());
  const int64_t pages = num_pages(k_ext.size(2), page_size);
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
  return device_scores("page_scores", queue, q, bounds, ext_len, page_size, false);
}

at::Tensor token_page_scores_on(const DeviceQueue& queue, const at::Tensor& q,
                                const PageBounds& bounds, const at::Tensor& ext_len,
                                int64_t page_size) {
  return device_scores("token_page_scores", queue, q, bounds, ext_len, page_size, true);
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m, "page_bounds(Tensor k_ext, Tensor ext_len, int page_size) -> (Tensor max, Tensor min)",
      [](const at::Tensor& k_ext, const at::Tensor& ext_len, int64_t page_size) {
        const PageBounds r = page_bounds(k_ext, ext_len, page_size);
        return std::tuple(r.max, r.min);
      },
      [](const at::Tensor& k_ext, const at::Tensor&, int64_t page_size) {
        TORCH_CHECK(k_ext.dim() == 4 && page_size > 0,
                    "page_bounds: expected k_ext [S, K, N, D] and page_size > 0, got ", k_ext.dim(),
                    " dimensions and ", page_size);
        meta::Shape shape = k_ext.sym_sizes().vec();
        shape[2] = (shape[2] + page_size - 1) / page_size;
        return std::tuple(meta::empty(k_ext, shape, k_ext.scalar_type()),
                          meta::empty(k_ext, shape, k_ext.scalar_type()));
      });
  define_operator(
      m,
      "page_scores(Tensor q, Tensor page_max, Tensor page_min, Tensor ext_len, int page_size) -> "
      "Tensor",
      [](const at::Tensor& q, const at::Tensor& max, const at::Tensor& min,
         const at::Tensor& ext_len, int64_t page_size) {
        return page_scores(q, {max, min}, ext_len, page_size);
      },
      [](const at::Tensor& q, const at::Tensor& max, const at::Tensor&, const at::Tensor&,
         int64_t) {
        return meta::empty(q, {q.sym_size(0), max.sym_size(1), max.sym_size(2)}, at::kFloat);
      });
  define_operator(
      m,
      "token_page_scores(Tensor q, Tensor page_max, Tensor page_min, Tensor ext_len, "
      "int page_size) -> Tensor",
      [](const at::Tensor& q, const at::Tensor& max, const at::Tensor& min,
         const at::Tensor& ext_len, int64_t page_size) {
        return token_page_scores(q, {max, min}, ext_len, page_size);
      },
      [](const at::Tensor& q, const at::Tensor& max, const at::Tensor&, const at::Tensor&,
         int64_t) {
        return meta::empty(q, {q.sym_size(0), max.sym_size(1), q.sym_size(2), max.sym_size(2)},
                           at::kFloat);
      });
}

}  // namespace blockscope
