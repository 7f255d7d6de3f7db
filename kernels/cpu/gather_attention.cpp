// gather_attention and unselected_attention. They check and sort sets of positions for the CPU path
// of split_attention.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/split_attention_cpu.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/operator.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {
namespace {

constexpr const char* kGather = "gather_attention";
constexpr const char* kUnselected = "unselected_attention";

struct SetArguments {
  at::Tensor index;  // [S, K, k] contiguous
  std::vector<int64_t> lengths;
  std::vector<bool> dense;  // [S]
};

SetArguments check_sets(const char* op, const AttentionSizes& sizes, const at::Tensor& index,
                        const at::Tensor& ext_len, const at::Tensor& dense) {
  SetArguments arguments;
  arguments.lengths = check_lengths(op, "ext_len", ext_len, sizes.sequences, sizes.external_keys);
  TORCH_CHECK(sizes.external_keys <= std::numeric_limits<int32_t>::max(), op,
              ": k_ext: expected at most 2^31 - 1 keys, got ", sizes.external_keys);
  check_cpu(op, "index", index, at::kInt);
  check_shape(op, "index", index, {sizes.sequences, sizes.kv_heads, -1});
  arguments.index = index.contiguous();
  arguments.dense.assign(static_cast<size_t>(sizes.sequences), false);
  if (dense.defined()) {
    check_cpu(op, "dense", dense, at::kBool);
    check_shape(op, "dense", dense, {sizes.sequences});
    const at::Tensor flags = dense.contiguous();
    const bool* data = flags.const_data_ptr<bool>();
    arguments.dense.assign(data, data + sizes.sequences);
  }
  return arguments;
}

// The positions below `length` with the bit `wanted`, ascending.
std::vector<int32_t> positions_of(const std::vector<uint64_t>& bits, int64_t length, bool wanted) {
  std::vector<int32_t> positions;
  for (size_t word = 0; word < bits.size(); ++word) {
    uint64_t rest = wanted ? bits[word] : ~bits[word];
    const int64_t left = length - static_cast<int64_t>(word) * 64;
    if (left < 64) rest &= (uint64_t{1} << left) - 1;
    for (; rest != 0; rest &= rest - 1) {
      positions.push_back(
          static_cast<int32_t>(static_cast<int64_t>(word) * 64 + std::countr_zero(rest)));
    }
  }
  return positions;
}

// One set per KV head: the selected positions, or the others. A bitmap sorts them and finds
// duplicates.
std::vector<KeySet> make_sets(const char* op, const AttentionSizes& sizes,
                              const SetArguments& arguments, bool selected) {
  std::vector<KeySet> sets(static_cast<size_t>(sizes.sequences * sizes.kv_heads));
  const int64_t k = arguments.index.size(2);
  const int32_t* index = arguments.index.const_data_ptr<int32_t>();
  parallel_tasks(static_cast<int64_t>(sets.size()), [&](int64_t i) {
    const int64_t sequence = i / sizes.kv_heads;
    if (arguments.dense[static_cast<size_t>(sequence)]) return;
    const int64_t length = arguments.lengths[static_cast<size_t>(sequence)];
    std::vector<uint64_t> bits(static_cast<size_t>((length + 63) / 64), 0);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t position = index[i * k + j];
      if (position == -1) continue;
      TORCH_CHECK(position >= 0 && position < length, op, ": index[", sequence, ", ",
                  i % sizes.kv_heads, ", ", j, "]: expected -1 or a position below ext_len ",
                  length, ", got ", position);
      uint64_t& word = bits[static_cast<size_t>(position / 64)];
      const uint64_t bit = uint64_t{1} << (position % 64);
      TORCH_CHECK((word & bit) == 0, op, ": index[", sequence, ", ", i % sizes.kv_heads,
                  "]: expected every position once, got ", position, " twice");
      word |= bit;
    }
    sets[static_cast<size_t>(i)] = {false, positions_of(bits, length, selected)};
  });
  return sets;
}

}  // namespace

SourcedAttention gather_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                  const at::Tensor& v_ext, const at::Tensor& ext_len,
                                  const at::Tensor& index, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale, const at::Tensor& dense,
                                  const at::Tensor& residual, const at::Tensor& lse_residual,
                                  WeightSpread* spread) {
  if (const DeviceScope device{q}) {
    return device.run(gather_attention_on, fallback::gather_attention, q, k_ext, v_ext, ext_len,
                      index, k_in, v_in, scale, dense, residual, lse_residual, spread);
  }
  const AttentionSizes sizes = check_split_attention(kGather, q, k_ext, v_ext, k_in, v_in);
  const SetArguments arguments = check_sets(kGather, sizes, index, ext_len, dense);
  ExternalSource source;
  source.sets = make_sets(kGather, sizes, arguments, true);
  if (residual.defined() || lse_residual.defined()) {
    check_cpu(kGather, "residual", residual, at::kFloat);
    check_shape(kGather, "residual", residual, q.sizes());
    check_cpu(kGather, "lse_residual", lse_residual, at::kFloat);
    check_shape(kGather, "lse_residual", lse_residual, q.sizes().slice(0, 3));
    source.residual = residual.contiguous();
    source.lse_residual = lse_residual.contiguous();
  }
  return split_attention_cpu(best_tile_kernels(), sizes, q, k_ext, v_ext, arguments.lengths, k_in,
                             v_in, source, scale, nullptr, spread);
}

PartialAttention unselected_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                      const at::Tensor& v_ext, const at::Tensor& ext_len,
                                      const at::Tensor& index, double scale) {
  if (const DeviceScope device{q}) {
    return device.run(unselected_attention_on, fallback::unselected_attention, q, k_ext, v_ext,
                      ext_len, index, scale);
  }
  const AttentionSizes sizes = check_attention(kUnselected, q, "k_ext", k_ext, "v_ext", &v_ext);
  const SetArguments arguments = check_sets(kUnselected, sizes, index, ext_len, {});
  ExternalSource source;
  source.sets = make_sets(kUnselected, sizes, arguments, false);
  const at::Tensor no_keys =
      at::empty({sizes.sequences, sizes.kv_heads, 0, sizes.dim}, q.options());
  SourcedAttention result = split_attention_cpu(best_tile_kernels(), sizes, q, k_ext, v_ext,
                                                arguments.lengths, no_keys, no_keys, source, scale);
  return {std::move(result.external), std::move(result.lse_external)};
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m,
      "gather_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor index, "
      "Tensor k_in, Tensor v_in, float scale, Tensor? dense=None, Tensor? residual=None, "
      "Tensor? lse_residual=None) -> (Tensor out, Tensor external, Tensor lse_external, "
      "Tensor internal, Tensor lse_internal, Tensor keys_read)",
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& v_ext,
         const at::Tensor& ext_len, const at::Tensor& index, const at::Tensor& k_in,
         const at::Tensor& v_in, double scale, const OptionalTensor& dense,
         const OptionalTensor& residual, const OptionalTensor& lse_residual) {
        const auto given = [](const OptionalTensor& tensor) {
          return tensor.value_or(at::Tensor());
        };
        const SourcedAttention r =
            gather_attention(q, k_ext, v_ext, ext_len, index, k_in, v_in, scale, given(dense),
                             given(residual), given(lse_residual));
        return std::tuple(r.out.contiguous(), r.external, r.lse_external, r.internal,
                          r.lse_internal, r.keys_read);
      },
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor&, const at::Tensor&,
         const at::Tensor&, const at::Tensor&, const at::Tensor&, double, const OptionalTensor&,
         const OptionalTensor&, const OptionalTensor&) { return meta::sourced_sides(q, k_ext); });
  define_operator(
      m,
      "unselected_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor index, "
      "float scale) -> (Tensor output, Tensor lse)",
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& v_ext,
         const at::Tensor& ext_len, const at::Tensor& index, double scale) {
        const PartialAttention r = unselected_attention(q, k_ext, v_ext, ext_len, index, scale);
        return std::tuple(r.output, r.lse);
      },
      [](const at::Tensor& q, const at::Tensor&, const at::Tensor&, const at::Tensor&,
         const at::Tensor&, double) { return std::tuple(meta::floats(q), meta::float_rows(q)); });
}

}  // namespace blockscope
