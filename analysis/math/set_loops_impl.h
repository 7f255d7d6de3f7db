// The loops of set_loops.h, in a form that the compiler vectorises. Included once per instruction
// set; everything has internal linkage.
#pragma once

#include "analysis/math/set_loops.h"

namespace blockscope {
namespace {

constexpr size_t kLanes = 8;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef double Doubles __attribute__((vector_size(kLanes * sizeof(double))));

uint32_t bits_of(const int32_t* positions, size_t count) {
  uint32_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits |= static_cast<uint32_t>(positions[i]) + 1U;
  return bits;
}

size_t padding_of(const int32_t* positions, size_t count) {
  uint32_t padding = 0;
  for (size_t i = 0; i < count; ++i) padding += positions[i] == -1 ? 1U : 0U;
  return padding;
}

void ranks_of(const int32_t* table, int32_t base, const int32_t* positions, size_t count,
              int32_t* __restrict out) {
  const int32_t* const shifted = table + 1;
  for (size_t i = 0; i < count; ++i) out[i] = shifted[positions[i]] - base;
}

size_t count_ranks(const int32_t* ranks, size_t count, int32_t limit) {
  uint32_t below = 0;
  for (size_t i = 0; i < count; ++i) below += ((ranks[i] >= 0) & (ranks[i] < limit)) ? 1U : 0U;
  return below;
}

double total(Doubles lanes) {
  double sum = 0.0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

double sum_all(const float* values, size_t count) {
  Doubles lanes{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats value;
    __builtin_memcpy(&value, values + i, sizeof(value));
    lanes += __builtin_convertvector(value, Doubles);
  }
  double sum = total(lanes);
  for (; i < count; ++i) sum += static_cast<double>(values[i]);
  return sum;
}

double sum_ranks(const float* values, const int32_t* ranks, size_t count, int32_t limit) {
  Doubles lanes{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats value;
    Ints rank;
    __builtin_memcpy(&value, values + i, sizeof(value));
    __builtin_memcpy(&rank, ranks + i, sizeof(rank));
    // Clear the bits instead of multiplying by 0, because a value that does not count may be NaN.
    const Ints chosen = reinterpret_cast<Ints>(value) & (rank >= 0) & (rank < limit);
    lanes += __builtin_convertvector(reinterpret_cast<Floats>(chosen), Doubles);
  }
  double sum = total(lanes);
  for (; i < count; ++i) {
    if (ranks[i] >= 0 && ranks[i] < limit) sum += static_cast<double>(values[i]);
  }
  return sum;
}

constexpr SetLoops make_set_loops(const char* instruction_set) {
  return {instruction_set, &bits_of, &padding_of, &ranks_of, &count_ranks, &sum_ranks, &sum_all};
}

}  // namespace
}  // namespace blockscope
