// The dialect of device.h for the emulator: the functions that a lane calls, and the work that the
// 32 lanes of a warp then do together. tests/kernels/test_emulator.cpp has the layouts of
// fragments.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <source_location>
#include <tuple>
#include <utility>

#include "kernels/device/emulator.h"

#define __global__
#define __device__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace blockscope::emulated {

using dim3 = Dim3;
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

using Stream = void*;  // there are no streams: a launch runs before it returns

extern thread_local Dim3 threadIdx;
extern thread_local Dim3 blockIdx;
extern thread_local Dim3 blockDim;
extern thread_local Dim3 gridDim;

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, Stream,
            const Arguments&... arguments) {
  run_grid(grid, block, shared_bytes, [&] { kernel(arguments...); });
}

using Where = std::source_location;

inline void __syncthreads(Where where = Where::current()) { wait_for_block(where); }

// --- all lanes of a warp: each passes a slot; the last lane to arrive works on all 32 slots

template <class Slot, class Work>
void with_warp(const char* name, Where where, Slot& slot, Work) {
  wait_for_warp(name, where, &slot, [](void* const* slots) {
    Slot* lanes[32];
    for (int i = 0; i < 32; ++i) lanes[i] = static_cast<Slot*>(slots[i]);
    Work{}(lanes);
  });
}

inline void __syncwarp(unsigned mask = ~0u, Where where = Where::current()) {
  check_full(mask, where);
  int slot = 0;
  with_warp("__syncwarp", where, slot, [](int* const*) {});
}

template <class Value>
Value __shfl_sync(unsigned mask, Value value, int lane, Where where = Where::current()) {
  check_full(mask, where);
  struct Slot {
    Value value;
    int from;
  } slot{value, lane & 31};
  with_warp("__shfl_sync", where, slot, [](Slot* const* lanes) {
    Value values[32];
    for (int i = 0; i < 32; ++i) values[i] = lanes[lanes[i]->from]->value;
    for (int i = 0; i < 32; ++i) lanes[i]->value = values[i];
  });
  return slot.value;
}
inline int lane_number() { return static_cast<int>(threadIdx.x % 32); }
template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int bits, Where where = Where::current()) {
  return __shfl_sync(mask, value, lane_number() ^ bits, where);
}
template <class Value>
Value __shfl_up_sync(unsigned mask, Value value, int by, Where where = Where::current()) {
  return __shfl_sync(mask, value, lane_number() < by ? lane_number() : lane_number() - by, where);
}

inline unsigned __ballot_sync(unsigned mask, bool vote, Where where = Where::current()) {
  check_full(mask, where);
  unsigned slot = vote ? 1u : 0u;
  with_warp("__ballot_sync", where, slot, [](unsigned* const* lanes) {
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i) votes |= *lanes[i] << i;
    for (int i = 0; i < 32; ++i) *lanes[i] = votes;
  });
  return slot;
}
inline bool __any_sync(unsigned mask, bool vote, Where where = Where::current()) {
  return __ballot_sync(mask, vote, where) != 0;
}

void load_matrix_x4(uint32_t (&r)[4], const void* row, Where where = Where::current());
void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row, Where where = Where::current());
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, BFloat16,
                  Where where = Where::current());
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Half,
                  Where where = Where::current());

// --- numbers

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
float to_float(Half x);
template <class Scalar>
Scalar round_to(float x);
template <>
float round_to<float>(float x);
template <>
BFloat16 round_to<BFloat16>(float x);
template <>
Half round_to<Half>(float x);
template <class Scalar>
uint32_t pack_pair(float low, float high, Scalar) {
  return round_to<Scalar>(low).bits | static_cast<uint32_t>(round_to<Scalar>(high).bits) << 16;
}
template <class Scalar>
float unpack_low(uint32_t pair, Scalar) {
  return to_float(Scalar{static_cast<uint16_t>(pair & 0xffffu)});
}
template <class Scalar>
float unpack_high(uint32_t pair, Scalar) {
  return to_float(Scalar{static_cast<uint16_t>(pair >> 16)});
}
inline float exp2_flushed(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// Atomic only for ThreadSanitizer, because lanes run one at a time.
template <class Value>
Value atomicAdd(Value* target, Value value) {
  return std::atomic_ref(*target).fetch_add(value, std::memory_order_relaxed);
}
template <class Value>
Value atomicOr(Value* target, Value value) {
  return std::atomic_ref(*target).fetch_or(value, std::memory_order_relaxed);
}

}  // namespace blockscope::emulated
