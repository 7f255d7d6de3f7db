// Kernels under ThreadSanitizer (kernels/device/race_detection.h): a run of every kernel of the
// split, and of those with shared memory. Silent, or it ends with 66 and the two places; built a
// second time without
// __syncwarp, it must not be silent.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/cuda/device_calls.h"
#include "kernels/device/emulator.h"

namespace blockscope {
namespace {

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kQueries = 12;
constexpr int kInternal = 12;
constexpr int kKeys = 330;  // two chunks, the second of them ragged
constexpr int kSets = 16;

struct Numbers {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;  // the same in bfloat16, truncated

  Numbers(size_t size, uint32_t seed) {
    for (size_t i = 0; i < size; ++i) {
      seed = seed * 1664525u + 1013904223u;
      wide.push_back(static_cast<float>(seed >> 8) / 16777216.0f - 0.5f);
      uint32_t bits = 0;
      __builtin_memcpy(&bits, &wide.back(), 4);
      narrow.push_back(static_cast<uint16_t>(bits >> 16));
    }
  }
  DeviceRows rows(DeviceFloat type, int heads, int count, int dim) const {
    const void* const data =
        type == DeviceFloat::kFloat32 ? static_cast<const void*>(wide.data()) : narrow.data();
    return {data, int64_t{heads} * count * dim, int64_t{count} * dim, dim};
  }
};

void run(DeviceFloat type, int dim, uint64_t seed) {
  emulated::set_options({.seed = seed});
  const Numbers q(static_cast<size_t>(kHeads * kQueries * dim), 1);
  const Numbers k(static_cast<size_t>(kKvHeads * kKeys * dim), 2);
  const Numbers v(static_cast<size_t>(kKvHeads * kKeys * dim), 3);
  const Numbers k_in(static_cast<size_t>(kKvHeads * kInternal * dim), 4);
  const Numbers v_in(static_cast<size_t>(kKvHeads * kInternal * dim), 5);
  const auto size = static_cast<size_t>(kHeads * kQueries * dim);
  std::vector<float> out(size), external(size), internal(size);
  std::vector<float> lse_external(size), lse_internal(size);
  SplitCall split;
  split.type = type;
  split.sequences = 1;
  split.heads = kHeads;
  split.kv_heads = kKvHeads;
  split.group = kHeads / kKvHeads;
  split.queries = kQueries;
  split.dim = dim;
  split.internal_keys = kInternal;
  split.max_chunks = num_chunks(kKeys);
  split.scale_log2 = 0.25f;
  split.q = q.rows(type, kHeads, kQueries, dim);
  split.k_ext = k.rows(type, kKvHeads, kKeys, dim);
  split.v_ext = v.rows(type, kKvHeads, kKeys, dim);
  split.k_in = k_in.rows(type, kKvHeads, kInternal, dim);
  split.v_in = v_in.rows(type, kKvHeads, kInternal, dim);
  split.lengths[0] = kKeys;
  std::vector<float> states(static_cast<size_t>(state_floats(split)), NAN);
  split.states = states.data();
  split.out = out.data();
  split.external = external.data();
  split.lse_external = lse_external.data();
  split.internal = internal.data();
  split.lse_internal = lse_internal.data();
  emulated::launch_split_attention(split, nullptr);

  PrefillCall prefill;  // the last positions of a prompt
  prefill.type = type;
  prefill.sequences = 1;
  prefill.heads = kHeads;
  prefill.group = split.group;
  prefill.queries = kQueries;
  prefill.dim = dim;
  prefill.block_length = 4;
  prefill.query_start = kKeys - kQueries;
  prefill.scale_log2 = 0.25f;
  prefill.q = split.q;
  prefill.k = split.k_ext;
  prefill.v = split.v_ext;
  prefill.out = out.data();
  prefill.lengths[0] = kKeys;
  emulated::launch_prefill(prefill, nullptr);

  MeansCall means;
  means.type = type;
  means.sequences = 1;
  means.heads = kHeads;
  means.kv_heads = kKvHeads;
  means.group = split.group;
  means.queries = kQueries;
  means.dim = dim;
  means.max_length = kKeys;
  means.num_sets = 2;  // two tokens: the sums of the first are overwritten by the second's
  means.per_token = true;
  means.scale = 0.17f;
  means.q = split.q;
  means.k_ext = split.k_ext;
  means.lse = lse_external.data();
  std::vector<float> probability(kKvHeads * 2 * kKeys);
  means.means = probability.data();
  means.lengths[0] = kKeys;
  emulated::launch_means(means, nullptr);

  if (type != DeviceFloat::kFloat32) {  // on tensor cores, by two groups of rows
    constexpr int kMany = 70;
    const Numbers many(static_cast<size_t>(kHeads * kMany * dim), 6);
    const std::vector<float> lse(static_cast<size_t>(kHeads * kMany), 3.0f);
    std::vector<float> block_means(kKvHeads * kKeys);
    MeansCall tiles = means;
    tiles.per_token = false;
    tiles.num_sets = 1;
    tiles.queries = kMany;
    tiles.scale_log2 = 0.25f;
    tiles.q = many.rows(type, kHeads, kMany, dim);
    tiles.lse = lse.data();
    tiles.means = block_means.data();
    emulated::launch_means(tiles, nullptr);
  }

  TopKCall best;
  best.sequences = 1;
  best.rows_per_sequence = kKvHeads;
  best.num_sets = best.sets_per_head = 2;
  best.k = kSets - 3;  // the rest is filled
  best.padded = kSets;
  best.max_length = kKeys;
  best.means = probability.data();
  std::vector<uint64_t> entries(kKvHeads * 2 * kSets);
  std::vector<int32_t> index(kKvHeads * 2 * kSets);
  std::vector<float> chosen(kKvHeads * 2 * kSets);
  best.entries = entries.data();
  best.index = index.data();
  best.probability = chosen.data();
  best.lengths[0] = kKeys;
  emulated::launch_top_k(best, nullptr);

  UnionCall all;
  all.heads = kKvHeads;
  all.words = (kKeys + 31) / 32;
  all.per_head = 2 * best.k;
  all.index = best.index;
  std::vector<uint32_t> seen(static_cast<size_t>(kKvHeads * all.words));
  std::vector<int32_t> sizes(kKvHeads);
  all.bits = seen.data();
  all.sizes = sizes.data();
  emulated::launch_count_union(all, nullptr);

  SelectCall select;
  select.sequences = 1;
  select.kv_heads = kKvHeads;
  select.per_set = kSets;
  select.words = (kKeys + 31) / 32;
  select.index = index.data();
  std::vector<uint32_t> bits(static_cast<size_t>(kKvHeads * select.words));
  select.bits = bits.data();
  select.capacity = kSets;
  std::vector<int32_t> positions(kKvHeads * kSets), counts(kKvHeads), faults(kKvHeads);
  select.positions = positions.data();
  select.counts = counts.data();
  select.faults = faults.data();
  select.lengths[0] = kKeys;
  emulated::launch_select(select, nullptr);

  NormCall norm;  // of a row that a thread block shares
  norm.type = type;
  norm.heads = 1;
  norm.tokens = 1;
  norm.rows = 1;
  norm.dim = 1100;
  norm.x = norm.y = k.rows(type, 1, 1, norm.dim);
  norm.weight = norm.x.data;
  std::vector<float> sum(static_cast<size_t>(norm.dim)), normed(sum.size());
  norm.sum = sum.data();
  norm.out = normed.data();
  emulated::launch_norm(norm, nullptr);
}

}  // namespace
}  // namespace blockscope

int main() {
  using blockscope::DeviceFloat;
  for (const uint64_t seed : {1u, 2u}) {
    blockscope::run(DeviceFloat::kBFloat16, 64, seed);
    blockscope::run(DeviceFloat::kFloat32, 48, seed);
  }
  blockscope::run(DeviceFloat::kFloat32, 132, 3);  // weights lie over the keys
  std::puts("every kernel ran");
  return 0;
}
