// Chooses the row products at run time from what the processor offers.
#include "analysis/math/row_products.h"

#include <array>

namespace blockscope {
namespace {

struct Available {
  std::array<const RowProductKernels*, 3> variants{};
  std::size_t count = 0;
};

Available detect() {
  Available available;
  const auto add = [&](const RowProductKernels& variant) {
    available.variants.at(available.count++) = &variant;
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    add(kRowProductsAvx512);
  }
  if (avx2) add(kRowProductsAvx2);
#endif
  add(kRowProductsBaseline);
  return available;
}

}  // namespace

const RowProductKernels* const* available_row_products(size_t* count) {
  static const Available available = detect();
  *count = available.count;
  return available.variants.data();
}

const RowProductKernels& best_row_products() {
  size_t count = 0;
  return *available_row_products(&count)[0];
}

}  // namespace blockscope
