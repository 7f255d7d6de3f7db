// Kernels under ThreadSanitizer (kernels/device/race_detection.h): a run of every kernel of the
// split, and of those with shared memory. Silent, or it ends with 66 and the two places; built a
// second time without __syncwarp, it must not be silent.
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

/// Launches each kernel on what the ones before it wrote.
class Kernels {
 public:
  Kernels(DeviceFloat type, int dim) : type_(type), dim_(dim) {}

  void split_attention() {
    split_.type = type_;
    split_.sequences = 1;
    split_.heads = kHeads;
    split_.kv_heads = kKvHeads;
    split_.group = kHeads / kKvHeads;
    split_.queries = kQueries;
    split_.dim = dim_;
    split_.internal_keys = kInternal;
    split_.max_chunks = num_chunks(kKeys);
    split_.scale_log2 = 0.25f;
    split_.q = q_.rows(type_, kHeads, kQueries, dim_);
    split_.k_ext = k_.rows(type_, kKvHeads, kKeys, dim_);
    split_.v_ext = v_.rows(type_, kKvHeads, kKeys, dim_);
    split_.k_in = k_in_.rows(type_, kKvHeads, kInternal, dim_);
    split_.v_in = v_in_.rows(type_, kKvHeads, kInternal, dim_);
    split_.lengths[0] = kKeys;
    std::vector<float> states(static_cast<size_t>(state_floats(split_)), NAN);
    split_.states = states.data();
    split_.out = out_.data();
    split_.external = external_.data();
    split_.lse_external = lse_external_.data();
    split_.internal = internal_.data();
    split_.lse_internal = lse_internal_.data();
    emulated::launch_split_attention(split_, nullptr);
  }

  void join() {  // with more internal keys than a thread block holds at a time
    JoinCall join;
    join.attention = split_;
    join.attention.k_in = k_.rows(type_, kKvHeads, kKeys, dim_);
    join.attention.v_in = v_.rows(type_, kKvHeads, kKeys, dim_);
    join.attention.internal_keys = 70;
    join.external = q_.rows(type_, kKvHeads, split_.group * kQueries, dim_);
    const std::vector<float> lse(static_cast<size_t>(kHeads * kQueries), 3.0f);
    join.lse_external = {lse.data(), kHeads * kQueries, split_.group * kQueries, 1};
    emulated::launch_join(join, nullptr);
  }

  void spread() {  // of two parts a head; the internal keys need sums over the rows
    SpreadCall spread;
    spread.attention = split_;
    spread.ranges = 4;
    const std::vector<int32_t> ends{0, 70, 70, kKeys};
    std::vector<int32_t> reached(kKvHeads * ends.size());
    std::vector<float> states(static_cast<size_t>(spread_state_floats(spread)), NAN);
    std::vector<float> sides(2 * kHeads * 3), range(kHeads * ends.size()),
        inside(kHeads * 3 * kInternal);
    spread.ends = ends.data();
    spread.reached = reached.data();
    spread.states = states.data();
    spread.entropy = sides.data();
    spread.largest = sides.data() + kHeads * 3;
    spread.range = range.data();
    spread.key = inside.data();
    spread.offset = inside.data() + kHeads * kInternal;
    emulated::launch_spread(spread, nullptr);
  }

  void prefill() {  // the last positions of a prompt
    PrefillCall prefill;
    prefill.type = type_;
    prefill.sequences = 1;
    prefill.heads = kHeads;
    prefill.group = split_.group;
    prefill.queries = kQueries;
    prefill.dim = dim_;
    prefill.block_length = 4;
    prefill.query_start = kKeys - kQueries;
    prefill.scale_log2 = 0.25f;
    prefill.q = split_.q;
    prefill.k = split_.k_ext;
    prefill.v = split_.v_ext;
    prefill.out = out_.data();
    prefill.lengths[0] = kKeys;
    emulated::launch_prefill(prefill, nullptr);
  }

  void means() {
    MeansCall means;
    means.type = type_;
    means.sequences = 1;
    means.heads = kHeads;
    means.kv_heads = kKvHeads;
    means.group = split_.group;
    means.queries = kQueries;
    means.dim = dim_;
    means.max_length = kKeys;
    means.num_sets = 2;  // two tokens: the sums of the first are overwritten by the second's
    means.per_token = true;
    means.scale = 0.17f;
    means.q = split_.q;
    means.k_ext = split_.k_ext;
    means.lse = lse_external_.data();
    means.means = probability_.data();
    means.lengths[0] = kKeys;
    emulated::launch_means(means, nullptr);
    if (type_ != DeviceFloat::kFloat32) means_on_tensor_cores(means);
  }

  void top_k() {
    TopKCall best;
    best.sequences = 1;
    best.rows_per_sequence = kKvHeads;
    best.num_sets = best.sets_per_head = 2;
    best.k = kBest;
    best.padded = kSets;
    best.max_length = kKeys;
    best.means = probability_.data();
    std::vector<uint64_t> entries(kKvHeads * 2 * kSets);
    std::vector<float> chosen(kKvHeads * 2 * kSets);
    best.entries = entries.data();
    best.index = index_.data();
    best.probability = chosen.data();
    best.lengths[0] = kKeys;
    emulated::launch_top_k(best, nullptr);
  }

  void unite() {
    UnionCall all;
    all.heads = kKvHeads;
    all.words = (kKeys + 31) / 32;
    all.per_head = 2 * kBest;
    all.index = index_.data();
    std::vector<uint32_t> seen(static_cast<size_t>(kKvHeads * all.words));
    std::vector<int32_t> sizes(kKvHeads);
    all.bits = seen.data();
    all.sizes = sizes.data();
    emulated::launch_count_union(all, nullptr);
  }

  void select() {
    SelectCall select;
    select.sequences = 1;
    select.kv_heads = kKvHeads;
    select.per_set = kSets;
    select.words = (kKeys + 31) / 32;
    select.index = index_.data();
    std::vector<uint32_t> bits(static_cast<size_t>(kKvHeads * select.words));
    select.bits = bits.data();
    select.capacity = kSets;
    std::vector<int32_t> positions(kKvHeads * kSets), counts(kKvHeads), faults(kKvHeads);
    select.positions = positions.data();
    select.counts = counts.data();
    select.faults = faults.data();
    select.lengths[0] = kKeys;
    emulated::launch_select(select, nullptr);
  }

  void norm() {  // of a row that a thread block shares
    NormCall norm;
    norm.type = type_;
    norm.heads = 1;
    norm.tokens = 1;
    norm.rows = 1;
    norm.dim = 1100;
    norm.x = norm.y = k_.rows(type_, 1, 1, norm.dim);
    norm.weight = norm.x.data;
    std::vector<float> sum(static_cast<size_t>(norm.dim)), normed(sum.size());
    norm.sum = sum.data();
    norm.out = normed.data();
    emulated::launch_norm(norm, nullptr);
  }

 private:
  static constexpr int kBest = kSets - 3;  // the rest of a set is filled

  size_t size(int heads, int rows) const { return static_cast<size_t>(heads * rows * dim_); }

  void means_on_tensor_cores(MeansCall means) {  // by two groups of rows
    constexpr int kMany = 70;
    const Numbers many(size(kHeads, kMany), 6);
    const std::vector<float> lse(static_cast<size_t>(kHeads * kMany), 3.0f);
    std::vector<float> block_means(kKvHeads * kKeys);
    means.per_token = false;
    means.num_sets = 1;
    means.queries = kMany;
    means.scale_log2 = 0.25f;
    means.q = many.rows(type_, kHeads, kMany, dim_);
    means.lse = lse.data();
    means.means = block_means.data();
    emulated::launch_means(means, nullptr);
  }

  DeviceFloat type_;
  int dim_;
  Numbers q_{size(kHeads, kQueries), 1};
  Numbers k_{size(kKvHeads, kKeys), 2}, v_{size(kKvHeads, kKeys), 3};
  Numbers k_in_{size(kKvHeads, kInternal), 4}, v_in_{size(kKvHeads, kInternal), 5};
  std::vector<float> out_ = std::vector<float>(size(kHeads, kQueries));
  std::vector<float> external_ = out_, internal_ = out_, lse_external_ = out_, lse_internal_ = out_;
  std::vector<float> probability_ = std::vector<float>(kKvHeads * 2 * kKeys);
  std::vector<int32_t> index_ = std::vector<int32_t>(kKvHeads * 2 * kSets);
  SplitCall split_;
};

void run(DeviceFloat type, int dim, uint64_t seed) {
  emulated::set_options({.seed = seed});
  Kernels kernels(type, dim);
  kernels.split_attention();
  if (type != DeviceFloat::kFloat32) kernels.join();
  kernels.spread();
  kernels.prefill();
  kernels.means();
  kernels.top_k();
  kernels.unite();
  kernels.select();
  kernels.norm();
}

}  // namespace
}  // namespace blockscope

int main() {
  using blockscope::DeviceFloat;
  for (const uint64_t seed : {1u, 2u}) {
    blockscope::run(DeviceFloat::kBFloat16, 64, seed);
    blockscope::run(DeviceFloat::kFloat32, 48, seed);
  }
  blockscope::run(DeviceFloat::kFloat32, 132, 3);  // weights overlap the keys
  std::puts("every kernel ran");
  return 0;
}
