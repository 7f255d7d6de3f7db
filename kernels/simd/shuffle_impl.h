// shuffle() for the loops that are compiled once per instruction set: GCC and clang have different
// builtins for it. Everything has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blockscope {
namespace {

template <typename Number, Number... Lanes>
struct LaneList {};

template <typename Vector, typename Order, size_t... Lanes>
[[gnu::always_inline]] inline Vector shuffle_lanes(Vector x, Vector y, Order order,
                                                   LaneList<size_t, Lanes...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, y, order(Lanes) % (2 * sizeof...(Lanes))...);
#else
  typedef uint32_t Index __attribute__((vector_size(sizeof(Vector))));
  return __builtin_shuffle(x, y, Index{static_cast<uint32_t>(order(Lanes))...});
#endif
}

/// Lane i of the result is lane order(i) of x and y, one after the other, modulo their number.
/// Lanes have four bytes; `order` is a lambda without captures.
template <typename Vector, typename Order>
[[gnu::always_inline]] inline Vector shuffle(Vector x, Vector y, Order order) {
  [[maybe_unused]] constexpr size_t kCount = sizeof(Vector) / sizeof(uint32_t);
#if defined(__clang__)
  return shuffle_lanes(x, y, order, __make_integer_seq<LaneList, size_t, kCount>{});
#else
  return shuffle_lanes(x, y, order, LaneList<size_t, __integer_pack(kCount)...>{});
#endif
}

}  // namespace
}  // namespace blockscope
