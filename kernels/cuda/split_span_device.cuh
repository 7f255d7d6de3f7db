// The keys of a thread block of split_attention, and of kernels that walk the same chunks.
#pragma once

#include "kernels/cuda/split_tile_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

// With refresh_rows: SplitCall::rows of a KV head.
__device__ __forceinline__ const int32_t* reading_rows(const SplitCall& call, int sequence,
                                                       int kv_head) {
  const int64_t head = static_cast<int64_t>(sequence) * call.kv_heads + kv_head;
  return call.rows + head * (1 + 2 * call.group * call.queries);
}

// The place of a row among the external states of its KV head; -1 if it takes the cached pair.
__device__ __forceinline__ int external_place(const SplitCall& call, int sequence, int head,
                                              int t) {
  const int row = head % call.group * call.queries + t;
  if (call.reuse == nullptr) return row;
  if (call.rows != nullptr) {
    return reading_rows(call, sequence, head / call.group)[1 + call.group * call.queries + row];
  }
  return call.reuse[static_cast<int64_t>(sequence) * call.heads + head] ? -1 : row;
}

// The external keys that a KV head reads. kListed: SplitCall::rows may be there.
template <bool kListed = true>
__device__ __forceinline__ int prefix_length(const SplitCall& call, int sequence, int kv_head) {
  int length = call.lengths[sequence];
  if (call.counts != nullptr) {
    const int count = call.counts[sequence * call.kv_heads + kv_head];
    if (count >= 0) length = count;
  }
  if (call.reuse == nullptr) return length;
  const bool* reuse = call.reuse + static_cast<int64_t>(sequence) * call.heads +
                      static_cast<int64_t>(kv_head) * call.group;
  for (int g = 0; g < call.group; ++g) {
    if (!reuse[g]) return length;
  }
  if (kListed && call.rows != nullptr && reading_rows(call, sequence, kv_head)[0] > 0)
    return length;
  return 0;
}

// The keys of chunk blockIdx.x; empty if the prefix has no such chunk. Chunk max_chunks has the
// internal keys.
template <class Scalar, bool kListed = true>
__device__ __forceinline__ KeySpan<Scalar> span_of(const SplitCall& call, int sequence,
                                                   int kv_head) {
  const int chunk = static_cast<int>(blockIdx.x);
  const bool internal = chunk == call.max_chunks;
  const DeviceRows& keys = internal ? call.k_in : call.k_ext;
  const DeviceRows& values = internal ? call.v_in : call.v_ext;
  KeySpan<Scalar> span;
  span.keys = row_at<Scalar>(keys, sequence, kv_head, 0);
  span.values = row_at<Scalar>(values, sequence, kv_head, 0);
  span.key_stride = keys.row;
  span.value_stride = values.row;
  span.positions = nullptr;
  span.dim = call.dim;
  span.aligned = is_aligned<Scalar>(keys) && is_aligned<Scalar>(values);
  span.begin = 0;
  span.end = call.internal_keys;
  if (!internal) {
    const int64_t head = static_cast<int64_t>(sequence) * call.kv_heads + kv_head;
    if (call.counts != nullptr && call.counts[head] >= 0) {
      span.positions = call.positions + head * call.capacity;
    }
    const int length = prefix_length<kListed>(call, sequence, kv_head);
    const int64_t size = keys_per_chunk(length);
    const int64_t begin = chunk * size;
    const int64_t end = begin + size;
    span.begin = static_cast<int>(begin < length ? begin : length);
    span.end = static_cast<int>(end < length ? end : length);
  }
  return span;
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
