#include "kernels/cuda/library_attention.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace blockscope {
namespace {

// Shapes from which the library's kernel with a join is faster than ours: rows of a KV head (query
// heads of the group times tokens), and keys of all sequences and KV heads of a call. Measured with
// scripts/bench/gpu_attention.py on an H200, torch 2.11, bfloat16, 32/8 heads of 128 channels.
struct Shape {
  int64_t most_rows;
  int64_t least_keys;
};
constexpr std::array kTable{
    Shape{64, 8 * 16384},
    Shape{INT64_MAX, 8 * 4096},
};

// The join walks the internal keys with plain multiply-adds.
constexpr int64_t kMostInternalKeys = 128;

std::vector<HeadRun> runs_of(const std::vector<bool>& reuse, const AttentionSizes& sizes,
                             int64_t sequence) {
  std::vector<HeadRun> runs;
  for (int64_t head = 0; head < sizes.kv_heads; ++head) {
    const auto flags = reuse.begin() + sequence * sizes.heads + head * sizes.group;
    if (std::all_of(flags, flags + sizes.group, [](bool flag) { return flag; })) continue;
    if (runs.empty() || runs.back().first + runs.back().count < head) runs.push_back({head, 0});
    ++runs.back().count;
  }
  return runs;
}

// Whether the library's 16-byte loads find their places.
bool is_aligned_for_library(const at::Tensor& rows) {
  bool aligned = reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
  for (int64_t i = 0; i < 3; ++i)
    aligned = aligned && (rows.size(i) < 2 || rows.stride(i) % 8 == 0);
  return aligned && rows.stride(3) == 1;
}

}  // namespace

PrefixPair flash_prefix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        double scale) {
  const at::AutoDispatchBelowADInplaceOrView without_gradients;
  auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, false, false, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

std::optional<std::vector<HeadRun>> reading_runs(const std::vector<bool>& reuse,
                                                 const AttentionSizes& sizes) {
  if (sizes.sequences == 0) return std::nullopt;
  std::vector<HeadRun> runs = runs_of(reuse, sizes, 0);
  for (int64_t s = 1; s < sizes.sequences; ++s) {
    if (runs_of(reuse, sizes, s) != runs) return std::nullopt;
  }
  return runs;
}

PrefixPair prefix_of_runs(PrefixAttention prefix, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, double scale, const std::vector<HeadRun>& runs) {
  PrefixPair all;
  for (const HeadRun& run : runs) {
    const auto of_run = [&](const at::Tensor& tensor) {
      return tensor.narrow(1, run.first, run.count);
    };
    PrefixPair pair = prefix(of_run(q), of_run(k), of_run(v), scale);
    if (run.count == q.size(1)) return pair;
    if (!all.output.defined()) {
      all.output = at::empty(q.sizes(), q.options());
      all.lse = at::empty(q.sizes().slice(0, 3), q.options().dtype(at::kFloat));
    }
    of_run(all.output).copy_(pair.output);
    of_run(all.lse).copy_(pair.lse);
  }
  return all;
}

at::Tensor aligned_for_library(const at::Tensor& rows) {
  return is_aligned_for_library(rows) ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

bool library_reads(const AttentionSizes& sizes, const std::vector<int64_t>& lengths,
                   int64_t internal_keys, const std::vector<HeadRun>& runs, const at::Tensor& k_ext,
                   const at::Tensor& v_ext) {
  const char* const asked = std::getenv("BLOCKSCOPE_SPLIT");
  const std::string_view name(asked == nullptr ? "" : asked);
  TORCH_CHECK(asked == nullptr || name == "own" || name == "library",
              "BLOCKSCOPE_SPLIT: expected own or library, got '", name, "'");
  const int64_t length = lengths.empty() ? 0 : lengths.front();
  const auto other = [&](int64_t one) { return one != length; };
  if (length == 0 || k_ext.element_size() != 2 || sizes.dim % 8 != 0 || sizes.queries == 0 ||
      internal_keys > kMostInternalKeys || std::ranges::any_of(lengths, other) ||
      !is_aligned_for_library(k_ext) || !is_aligned_for_library(v_ext)) {
    return false;
  }
  if (asked != nullptr) return name == "library";
  const int64_t rows = sizes.group * sizes.queries;
  int64_t heads = sizes.kv_heads;
  for (const HeadRun& run : runs) heads = std::min(heads, run.count);
  const int64_t keys = sizes.sequences * heads * length;
  const auto* const shape =
      std::ranges::find_if(kTable, [&](const Shape& one) { return rows <= one.most_rows; });
  return keys >= shape->least_keys;
}

}  // namespace blockscope
