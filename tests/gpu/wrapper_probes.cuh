// Each name of the dialect (kernels/device/device.h) in a kernel of its own, which reads `in` and
// writes what it got to `out`. Compiled once for each backend; test_conformance.cu compares the
// two.
#pragma once

#include <cmath>

#include "kernels/device/device.h"
#include "tests/gpu/wrapper_probes.h"

namespace blockscope::BLOCKSCOPE_BACKEND {

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ uint16_t half_word(const uint32_t* words, int i) {
  return static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
}

// --- what a warp does together

__device__ __forceinline__ char* shared_words(const uint32_t* in) {
  uint32_t* words = reinterpret_cast<uint32_t*>(dynamic_shared());
  for (int i = thread_index(); i < kProbeSharedBytes / 4; i += kProbeThreads) words[i] = in[i];
  __syncthreads();
  return dynamic_shared();
}

__global__ void probe_load_matrix(const uint32_t* in, uint32_t* out) {
  const char* row =
      shared_words(in) + thread_index() * 7 % 64 * 16;  // neighbouring rows are not adjacent
  uint32_t r[4];
  load_matrix_x4(r, row);
  for (int i = 0; i < 4; ++i) out[thread_index() * 4 + i] = r[i];
}

__global__ void probe_load_matrix_transposed(const uint32_t* in, uint32_t* out) {
  const char* row = shared_words(in) + thread_index() * 7 % 64 * 16;
  uint32_t r[4];
  load_matrix_x4_transposed(r, row);
  for (int i = 0; i < 4; ++i) out[thread_index() * 4 + i] = r[i];
}

// Whole numbers up to 16: products and sums are exact, so that only the layout counts.
template <class Scalar>
__device__ __forceinline__ uint32_t small_pair(uint32_t bits, Scalar type) {
  return pack_pair(static_cast<float>(bits & 31u) - 16.0f,
                   static_cast<float>(bits >> 5 & 31u) - 16.0f, type);
}

template <class Scalar, bool kExact>
__global__ void probe_multiply_add(const uint32_t* in, uint32_t* out) {
  const uint32_t* mine = in + thread_index() * 10;
  const auto operand = [&](int i) {
    if (kExact) return small_pair(mine[i], Scalar{});
    return pack_pair(static_cast<float>(mine[i] & 0xffffu) * 0x1p-15f - 1.0f,
                     static_cast<float>(mine[i] >> 16) * 0x1p-15f - 1.0f, Scalar{});
  };
  const uint32_t a[4] = {operand(0), operand(1), operand(2), operand(3)};
  float c[4];
  for (int i = 0; i < 4; ++i) {
    c[i] = static_cast<float>(mine[6 + i] & 255u) * (kExact ? 1.0f : 0x1p-8f);
  }
  multiply_add(c, a, operand(4), operand(5), Scalar{});
  for (int i = 0; i < 4; ++i) out[thread_index() * 4 + i] = __float_as_uint(c[i]);
}

__global__ void probe_shuffles(const uint32_t* in, uint32_t* out) {
  uint32_t* mine = out + thread_index() * 16;
  const uint32_t word = in[thread_index()];
  const float real = static_cast<float>(word & 0xffffu);
  mine[0] = static_cast<uint32_t>(__shfl_sync(~0u, static_cast<int>(word), 5));
  mine[1] =
      static_cast<uint32_t>(__shfl_sync(~0u, static_cast<int>(word), static_cast<int>(word & 31u)));
  for (int i = 0; i < 5; ++i) {
    mine[2 + i] = __float_as_uint(__shfl_xor_sync(~0u, real, 1 << i));
    mine[7 + i] = static_cast<uint32_t>(__shfl_up_sync(~0u, static_cast<int>(word), 1 << i));
  }
  mine[12] = __ballot_sync(~0u, (word & 4u) != 0);
  mine[13] = __any_sync(~0u, word % 64 == 3) ? 1u : 0u;
  mine[14] = __any_sync(~0u, thread_index() == 40) ? 1u : 0u;
  __syncwarp();
  const double wide = __shfl_xor_sync(~0u, static_cast<double>(word) * 0x1p-40, 1);
  mine[15] = static_cast<uint32_t>(wide * 0x1p40);
}

// --- copies

// Every size from 0 to 16 in steps of 2, from every aligned place; the rest of the 16 bytes is 0.
__global__ void probe_copies(const uint32_t* in, uint32_t* out) {
  char* shared = shared_words(in + 4096);
  for (int i = 0; i < 4; ++i) {
    const int piece = i * kProbeThreads + thread_index();
    copy_async_16(shared + piece * 16, in + piece * 4, piece % 9 * 2);
    copy_async_commit();
  }
  copy_async_wait<1>();
  for (int i = 0; i < 3;
       ++i) {  // its own pieces of the first three groups are there without a barrier
    const int piece = i * kProbeThreads + thread_index();
    const uint32_t* words = reinterpret_cast<const uint32_t*>(shared + piece * 16);
    for (int k = 0; k < 4; ++k) out[piece * 4 + k] = words[k];
  }
  copy_async_wait<0>();
  __syncthreads();
  const int piece = 3 * kProbeThreads + (thread_index() + 17) % kProbeThreads;  // another thread's
  const uint32_t* words = reinterpret_cast<const uint32_t*>(shared + piece * 16);
  for (int k = 0; k < 4; ++k) out[piece * 4 + k] = words[k];
}

// --- numbers

template <class Scalar>
__global__ void probe_to_float(const uint32_t*, uint32_t* out) {
  for (int i = thread_index(); i < 65536; i += kProbeThreads) {
    out[i] = __float_as_uint(to_float(Scalar{static_cast<uint16_t>(i)}));
  }
}

template <class Scalar>
__global__ void probe_round_to(const uint32_t* in, uint32_t* out) {
  for (int i = thread_index(); i < kProbeWords; i += kProbeThreads) {
    out[i] = round_to<Scalar>(__uint_as_float(in[i])).bits;
  }
}

template <class Scalar>
__global__ void probe_pairs(const uint32_t* in, uint32_t* out) {
  for (int i = thread_index(); i < kProbeWords / 2; i += kProbeThreads) {
    const uint32_t pair =
        pack_pair(__uint_as_float(in[i * 2]), __uint_as_float(in[i * 2 + 1]), Scalar{});
    out[i * 3] = __float_as_uint(unpack_low(pair, Scalar{}));
    out[i * 3 + 1] = __float_as_uint(unpack_high(pair, Scalar{}));
    out[i * 3 + 2] = __float_as_uint(to_float(Scalar{half_word(in, i)}));
  }
}

__global__ void probe_exp2(const uint32_t* in, uint32_t* out) {
  for (int i = thread_index(); i < kProbeWords; i += kProbeThreads) {
    // 0, -inf and NaN, then [-150, 10).
    const float x = i == 0   ? 0.0f
                    : i == 1 ? -INFINITY
                    : i == 2 ? NAN
                             : fmaf(static_cast<float>(in[i] >> 8), 160.0f * 0x1p-24f, -150.0f);
    out[i] = __float_as_uint(exp2_flushed(x));
  }
}

// What the C library gives under the same names.
__global__ void probe_library(const uint32_t* in, uint32_t* out) {
  for (int i = thread_index(); i < kProbeWords / 4; i += kProbeThreads) {
    const float x = static_cast<float>(in[i] >> 8) * 0x1p-18f + 0x1p-20f;  // (0, 64)
    out[i * 4] = __float_as_uint(expf(-x));
    out[i * 4 + 1] = __float_as_uint(logf(x));
    out[i * 4 + 2] = __float_as_uint(log2f(x));
    out[i * 4 + 3] = __float_as_uint(fmaf(x, x, -1.0f));
  }
}

__global__ void probe_bits(const uint32_t* in, uint32_t* out) {
  for (int i = thread_index(); i < kProbeWords / 2; i += kProbeThreads) {
    out[i * 2] = static_cast<uint32_t>(__popc(in[i]));
    out[i * 2 + 1] = static_cast<uint32_t>(__clz(static_cast<int>(in[i] >> i % 32)));
  }
}

// All threads on the same few words; what they add up to does not depend on the order.
__global__ void probe_atomics(const uint32_t* in, uint32_t* out) {
  int* shared = reinterpret_cast<int*>(dynamic_shared());
  if (thread_index() < 8) shared[thread_index()] = 0;
  __syncthreads();
  const uint32_t word = in[thread_index()];
  atomicAdd(&shared[word % 8], static_cast<int>(word >> 8 & 255u));
  atomicAdd(reinterpret_cast<int*>(out) + word % 8, static_cast<int>(word >> 16 & 255u));
  const uint32_t bit = 1u << (thread_index() % 32);
  for (int turn = 0; turn < 2; ++turn) {  // its bit is new the first time
    const uint32_t before = atomicOr(out + 8 + thread_index() / 32, bit) & bit;
    out[16 + turn * kProbeThreads + thread_index()] = before != 0 ? 1u : 0u;
  }
  __syncthreads();
  if (thread_index() < 8) out[256 + thread_index()] = static_cast<uint32_t>(shared[thread_index()]);
}

// Indices of a grid of several blocks, and more shared memory than a launch may take unasked.
__global__ void probe_grid(const uint32_t*, uint32_t* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  char* last = dynamic_shared() + kProbeLargeShared - kProbeThreads * 4;
  reinterpret_cast<uint32_t*>(last)[thread_index()] = block;
  __syncthreads();
  out[block * kProbeThreads + threadIdx.x] =
      reinterpret_cast<const uint32_t*>(last)[blockDim.x - 1 - threadIdx.x] * 100 + threadIdx.x;
}

// --- the table

using Kernel = void (*)(const uint32_t*, uint32_t*);

template <class Visit>
void for_each_kernel(const Visit& visit) {
  visit("load_matrix_x4", &probe_load_matrix);
  visit("load_matrix_x4_transposed", &probe_load_matrix_transposed);
  visit("multiply_add bfloat16, layout", &probe_multiply_add<BFloat16, true>);
  visit("multiply_add float16, layout", &probe_multiply_add<Half, true>);
  visit("multiply_add bfloat16, sums", &probe_multiply_add<BFloat16, false>);
  visit("multiply_add float16, sums", &probe_multiply_add<Half, false>);
  visit("shuffles and votes", &probe_shuffles);
  visit("copy_async", &probe_copies);
  visit("to_float bfloat16", &probe_to_float<BFloat16>);
  visit("to_float float16", &probe_to_float<Half>);
  visit("round_to bfloat16", &probe_round_to<BFloat16>);
  visit("round_to float16", &probe_round_to<Half>);
  visit("pairs bfloat16", &probe_pairs<BFloat16>);
  visit("pairs float16", &probe_pairs<Half>);
  visit("exp2_flushed", &probe_exp2);
  visit("expf, logf, log2f, fmaf", &probe_library);
  visit("popc, clz", &probe_bits);
  visit("atomics", &probe_atomics);
  visit("grid and large shared memory", &probe_grid);
}

void run_probe(int probe, const uint32_t* in, uint32_t* out, void* on) {
  int number = 0;
  for_each_kernel([&](const char* name, Kernel kernel) {
    if (number++ != probe) return;
    const bool grid = name[0] == 'g';
    launch(kernel, grid ? dim3{3, 2, 2} : dim3{1, 1, 1}, dim3{kProbeThreads, 1, 1},
           grid ? kProbeLargeShared : kProbeSharedBytes, static_cast<Stream>(on), in, out);
  });
}

const char* probe_name(int probe) {
  const char* found = nullptr;
  int number = 0;
  for_each_kernel([&](const char* name, Kernel) {
    if (number++ == probe) found = name;
  });
  return found;
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
