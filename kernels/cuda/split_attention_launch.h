// One call of split_attention on a device: plain numbers and pointers, the same for the GPU and the
// emulator. Results are those of ops.h. No torch here.
//
// The external keys of a KV head are split into chunks; the chunks depend only on the number of
// keys. A thread block takes one chunk, or all internal keys, and up to 128 query rows (g * T + t)
// of the KV head. It leaves an unfinished state for each row. A second kernel merges the states of
// a row. So a few long sequences fill a GPU, and results depend neither on the device nor on the
// other sequences.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define BLOCKSCOPE_HOST_DEVICE __host__ __device__
#else
#define BLOCKSCOPE_HOST_DEVICE
#endif

namespace blockscope {

enum class DeviceFloat { kFloat32, kFloat16, kBFloat16 };

// A tensor [S, heads, rows, D] with strides in elements; the last stride is 1.
struct DeviceRows {
  const void* data = nullptr;
  int64_t sequence = 0;
  int64_t head = 0;
  int64_t row = 0;
};

constexpr int kMaxDeviceDim = 256;
constexpr int kMaxSequencesPerCall = 512;  // the launch arguments hold their lengths
constexpr int kMaxChunks = 32;             // one per lane of the merging warp

struct SplitCall {
  DeviceFloat type = DeviceFloat::kFloat32;
  int sequences = 0;
  int heads = 0;
  int kv_heads = 0;
  int group = 0;
  int queries = 0;
  int dim = 0;
  int max_chunks = 0;  // chunks of the longest prefix
  int internal_keys = 0;
  float scale_log2 = 0.0f;  // scale * log2(e)
  DeviceRows q, k_ext, v_ext, k_in, v_in;

  // Unfinished states, state_floats() floats: [S, K, max_chunks + 1, G * T] rows of padded_dim(dim)
  // outputs, then their maxima (times log2(e)), then their sums. Chunk max_chunks has the internal
  // keys.
  float* states = nullptr;

  void* out = nullptr;        // [S, T, H, D]
  float* external = nullptr;  // this and the next three: all set, or all null
  float* lse_external = nullptr;
  float* internal = nullptr;
  float* lse_internal = nullptr;

  // For reuse_attention, else null: [S, H], whether a head takes its external pair from
  // `cached_...`. A KV head's prefix is not read if all its rows do.
  const bool* reuse = nullptr;
  const float* cached_external = nullptr;  // [S, H, T, D]
  const float* cached_lse = nullptr;       // [S, H, T]

  // For gather_attention, else null: KV head i reads counts[i] external keys, at the ascending
  // positions positions[i * capacity ...]. A negative count: all keys of the sequence.
  const int32_t* positions = nullptr;
  const int32_t* counts = nullptr;  // [S, K]
  int64_t capacity = 0;
  const float* residual = nullptr;      // [S, H, T, D]: a third part of `out`
  const float* lse_residual = nullptr;  // [S, H, T]

  int64_t* keys_read = nullptr;  // [S, K], or null: external keys read

  int32_t lengths[kMaxSequencesPerCall] = {};  // external keys of each sequence

  // For refresh_rows of reuse_attention, else null: [S, K, 1 + 2 * G * T], how many rows of a KV
  // head read the prefix; these rows, ascending; the place of each row among them, or -1. The
  // states of the external keys are then in this order.
  const int32_t* rows = nullptr;
};

BLOCKSCOPE_HOST_DEVICE inline int keys_per_chunk(int keys) {
  constexpr int kMinKeys = 256;
  constexpr int kTile = 64;
  const int even = (keys + kMaxChunks - 1) / kMaxChunks;
  const int tiles = (even + kTile - 1) / kTile;
  return tiles * kTile > kMinKeys ? tiles * kTile : kMinKeys;
}
BLOCKSCOPE_HOST_DEVICE inline int num_chunks(int keys) {
  const int chunk = keys_per_chunk(keys);
  return static_cast<int>((static_cast<int64_t>(keys) + chunk - 1) / chunk);
}

// The kernels' row length in registers and shared memory; channels from `dim` on are 0.
BLOCKSCOPE_HOST_DEVICE inline int padded_dim(int dim) {
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

BLOCKSCOPE_HOST_DEVICE inline int64_t num_states(const SplitCall& call) {
  return static_cast<int64_t>(call.sequences) * call.kv_heads * (call.max_chunks + 1) * call.group *
         call.queries;
}
inline int64_t state_floats(const SplitCall& call) {
  return num_states(call) * (padded_dim(call.dim) + 2);
}

}  // namespace blockscope
