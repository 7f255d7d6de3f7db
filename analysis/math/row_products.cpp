// Chooses the row products at run time from what the processor offers.
#include "analysis/math/row_products.h"

#include "analysis/math/loop_variants.h"

namespace blockscope {
namespace {

const LoopVariants<RowProductKernels>& row_products() {
#if defined(__x86_64__)
  static const LoopVariants<RowProductKernels> loops(&kRowProductsAvx512, &kRowProductsAvx2,
                                                     kRowProductsBaseline);
#else
  static const LoopVariants<RowProductKernels> loops(nullptr, nullptr, kRowProductsBaseline);
#endif
  return loops;
}

}  // namespace

const RowProductKernels* const* available_row_products(size_t* count) {
  *count = row_products().count;
  return row_products().variants.data();
}

const RowProductKernels& best_row_products() { return *row_products().variants[0]; }

}  // namespace blockscope
