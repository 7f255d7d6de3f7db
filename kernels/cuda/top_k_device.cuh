// block_topk and token_topk. First come the mean probabilities of the keys: for a block's set on
// tensor cores (mean_tile_device.cuh), else with a thread block per 32 keys. Then come the k
// largest of each row, with a thread block per row: a radix select finds the k-th, and a bitonic
// sort orders those not below it.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/mean_tile_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

constexpr int kMeanKeys = 32;

// A lane has one key; the warps share the rows of a set. blockIdx is (keys, KV head, sequence).
template <class Scalar>
__global__ void __launch_bounds__(128) mean_probabilities(const __grid_constant__ MeansCall call) {
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kMeanKeys;
  const int length = call.lengths[sequence];
  if (first >= length) return;
  const int count = length - first < kMeanKeys ? length - first : kMeanKeys;
  const int pitch = call.dim | 1;  // odd, so 32 rows are in 32 banks
  float* const keys = reinterpret_cast<float*>(dynamic_shared());
  float* const sums = keys + kMeanKeys * pitch;  // [warp][key]
  for (int i = static_cast<int>(threadIdx.x); i < kMeanKeys * call.dim; i += 128) {
    const int key = i / call.dim;
    const int d = i % call.dim;
    keys[key * pitch + d] =
        key < count ? to_float(row_at<Scalar>(call.k_ext, sequence, kv_head, first + key)[d])
                    : 0.0f;
  }
  __syncthreads();
  const int lane = lane_of_warp();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tokens = call.per_token ? 1 : call.queries;
  const int rows = call.group * tokens;
  const float* key = keys + lane * pitch;
  for (int set = 0; set < call.num_sets; ++set) {
    float sum = 0.0f;
    for (int row = warp; row < rows; row += 4) {
      const int head = kv_head * call.group + row / tokens;
      const int t = call.per_token ? call.first_token + set : row % tokens;
      const Scalar* query = row_at<Scalar>(call.q, sequence, head, t);
      float score = 0.0f;
      for (int d = 0; d < call.dim; ++d) score = fmaf(to_float(query[d]), key[d], score);
      const float lse =
          call.lse[(static_cast<int64_t>(sequence) * call.heads + head) * call.queries + t];
      // lse -inf: all scores are -inf. The row then gives probability 0 instead of NaN.
      sum += expf(score * call.scale - (lse == -INFINITY ? INFINITY : lse));
    }
    sums[warp * kMeanKeys + lane] = sum;
    __syncthreads();
    if (warp == 0 && lane < count) {
      const float total = sums[lane] + sums[kMeanKeys + lane] + sums[2 * kMeanKeys + lane] +
                          sums[3 * kMeanKeys + lane];
      const int64_t head = static_cast<int64_t>(sequence) * call.kv_heads + kv_head;
      call.means[(head * call.num_sets + set) * call.max_length + first + lane] =
          total / static_cast<float>(rows);
    }
    __syncthreads();  // before the sums are overwritten
  }
}

// Larger is better. NaN is below every probability. No rank is 0.
__device__ __forceinline__ uint32_t rank_of(float probability) {
  if (!(probability >= 0.0f)) return 1;
  return (__float_as_uint(probability) & 0x7fffffffu) + 2;
}

constexpr int kSelectPerThread = 4;  // neighbouring keys with loads in flight together

// The dynamic shared memory of select_top_k.
struct SelectShared {
  int bins[256];
  int sums[16];       // of the warps
  uint32_t found[2];  // rank, and number still wanted
  uint64_t entries[1];
};

// The largest bin that, together with the bins above it, holds at least `left` > 0 entries. Called
// by one warp.
__device__ __forceinline__ void find_bin(SelectShared& shared, uint32_t prefix, int left) {
  constexpr int kPerLane = 256 / 32;
  const int lane = lane_of_warp();
  int bin = 255 - lane * kPerLane;  // the lane's first bin, counted from above
  int own = 0;
  for (int i = 0; i < kPerLane; ++i) own += shared.bins[bin - i];
  int from_here = own;  // entries in these bins and all above
  for (int by = 1; by < 32; by *= 2) {
    const int other = __shfl_up_sync(~0u, from_here, by);
    if (lane >= by) from_here += other;
  }
  int above = from_here - own;
  if (above >= left || from_here < left) return;
  while (above + shared.bins[bin] < left) above += shared.bins[bin--];
  shared.found[0] = prefix << 8 | static_cast<uint32_t>(bin);
  shared.found[1] = static_cast<uint32_t>(left - above);
}

__global__ void __launch_bounds__(512, 2) select_top_k(const __grid_constant__ TopKCall call) {
  const int64_t row = blockIdx.x;  // of [S, K, num_sets]
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int64_t head = row / call.num_sets;
  const int64_t result =
      (head * call.sets_per_head + call.first_set + row % call.num_sets) * call.k;
  const int length = call.lengths[head / call.rows_per_sequence];
  const int wanted = call.k < length ? call.k : length;
  const float* means = call.means + row * call.max_length;
  SelectShared& shared = *reinterpret_cast<SelectShared*>(dynamic_shared());
  uint64_t* const entries =
      call.padded <= kMostSortedInShared ? shared.entries : call.entries + row * call.padded;
  const int at_once = threads * kSelectPerThread;

  // The rank of the last wanted entry, eight bits at a time, from the highest.
  uint32_t prefix = 0;
  int left = wanted;
  for (int shift = 24; shift >= 0 && wanted > 0; shift -= 8) {
    for (int i = thread; i < 256; i += threads) shared.bins[i] = 0;
    __syncthreads();
    for (int begin = thread * kSelectPerThread; begin < length; begin += at_once) {
      uint32_t ranks[kSelectPerThread];
#pragma unroll
      for (int j = 0; j < kSelectPerThread; ++j) {
        ranks[j] = begin + j < length ? rank_of(means[begin + j]) : 0;
      }
#pragma unroll
      for (int j = 0; j < kSelectPerThread; ++j) {
        const bool counts = shift == 24 || ranks[j] >> (shift + 8) == prefix;
        if (begin + j < length && counts) atomicAdd(&shared.bins[ranks[j] >> shift & 255], 1);
      }
    }
    __syncthreads();
    if (thread < 32) find_bin(shared, prefix, left);
    __syncthreads();
    prefix = shared.found[0];
    left = static_cast<int>(shared.found[1]);
  }

  // Takes all entries above it and the first `left` equal ones, in the order of their positions.
  int taken = 0;
  int equal = 0;
  for (int begin = 0; begin < length && wanted > 0; begin += at_once) {
    const int first = begin + thread * kSelectPerThread;
    uint32_t ranks[kSelectPerThread];
    int own = 0;  // two counts in one number: entries above, and equal ones
#pragma unroll
    for (int j = 0; j < kSelectPerThread; ++j) {
      ranks[j] = first + j < length ? rank_of(means[first + j]) : 0;
      own += ranks[j] > prefix ? 1 : ranks[j] == prefix ? 0x10000 : 0;
    }
    int before = own;
    for (int by = 1; by < 32; by *= 2) {
      const int other = __shfl_up_sync(~0u, before, by);
      if (thread % 32 >= by) before += other;
    }
    if (thread % 32 == 31) shared.sums[thread / 32] = before;
    __syncthreads();
    before -= own;
    int all = 0;
    for (int warp = 0; warp < threads / 32; ++warp) {
      if (warp < thread / 32) before += shared.sums[warp];
      all += shared.sums[warp];
    }
#pragma unroll
    for (int j = 0; j < kSelectPerThread; ++j) {
      const uint64_t entry =
          static_cast<uint64_t>(ranks[j]) << 32 | ~static_cast<uint32_t>(first + j);
      if (ranks[j] > prefix) entries[left + taken + (before++ & 0xffff)] = entry;
      if (ranks[j] != prefix) continue;
      const int equals = equal + (before >> 16);
      if (equals < left) entries[equals] = entry;
      before += 0x10000;
    }
    taken += all & 0xffff;
    equal += all >> 16;
    __syncthreads();  // before the sums are overwritten
  }
  for (int i = wanted + thread; i < call.padded; i += threads) entries[i] = 0;
  __syncthreads();

  for (int size = 2; size <= call.padded; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = thread; i < call.padded; i += threads) {
        const int other = i ^ step;
        if (other < i) continue;
        const uint64_t a = entries[i];
        const uint64_t b = entries[other];
        if ((i & size) == 0 ? a < b : a > b) {
          entries[i] = b;
          entries[other] = a;
        }
      }
      __syncthreads();
    }
  }
  for (int i = thread; i < call.k; i += threads) {
    const bool present = i < wanted;
    const uint64_t entry = present ? entries[i] : 0;
    const auto rank = static_cast<uint32_t>(entry >> 32);
    call.index[result + i] = present ? static_cast<int32_t>(~static_cast<uint32_t>(entry)) : -1;
    call.probability[result + i] = !present ? 0.0f : rank == 1 ? NAN : __uint_as_float(rank - 2);
  }
}

__global__ void __launch_bounds__(256) count_union(const __grid_constant__ UnionCall call) {
  const int64_t head = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t* bits = call.bits + head * call.words;
  int* const total = reinterpret_cast<int*>(dynamic_shared());
  for (int i = thread; i < call.words; i += 256) bits[i] = 0;
  if (thread == 0) *total = 0;
  __syncthreads();
  for (int64_t i = thread; i < call.per_head; i += 256) {
    const int32_t position = call.index[head * call.per_head + i];
    if (position >= 0) atomicOr(&bits[position / 32], uint32_t{1} << (position % 32));
  }
  __syncthreads();
  int count = 0;
  for (int i = thread; i < call.words; i += 256) count += __popc(bits[i]);
  atomicAdd(total, count);
  __syncthreads();
  if (thread == 0) call.sizes[head] = *total;
}

void launch_means(const MeansCall& call, void* on) {
  const dim3 grid{static_cast<unsigned>((call.max_length + kMeanKeys - 1) / kMeanKeys),
                  static_cast<unsigned>(call.kv_heads), static_cast<unsigned>(call.sequences)};
  const std::size_t bytes = (kMeanKeys * (call.dim | 1) + 4 * kMeanKeys) * sizeof(float);
  with_type(call.type, [&](auto scalar) {
    using Scalar = decltype(scalar);
    if constexpr (sizeof(Scalar) == 2) {
      if (!call.per_token) return launch_mean_tiles_of<Scalar>(call, static_cast<Stream>(on));
    }
    launch(mean_probabilities<Scalar>, grid, dim3{128, 1, 1}, bytes, static_cast<Stream>(on), call);
  });
}

void launch_top_k(const TopKCall& call, void* on) {
  const auto rows = static_cast<unsigned>(call.sequences * call.rows_per_sequence * call.num_sets);
  // A long row takes long with few threads. A short row leaves most of many threads idle.
  const unsigned threads = call.max_length > 8192 ? 512 : 256;
  const std::size_t sorted =
      call.padded <= kMostSortedInShared ? static_cast<std::size_t>(call.padded) : 1;
  launch(select_top_k, dim3{rows, 1, 1}, dim3{threads, 1, 1},
         sizeof(SelectShared) + sorted * sizeof(uint64_t), static_cast<Stream>(on), call);
}

void launch_count_union(const UnionCall& call, void* on) {
  launch(count_union, dim3{static_cast<unsigned>(call.heads), 1, 1}, dim3{256, 1, 1}, 64,
         static_cast<Stream>(on), call);
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
