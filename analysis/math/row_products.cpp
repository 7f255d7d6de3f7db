// Chooses the row products at run time by the instruction sets of the processor.
#include "analysis/math/row_products.h"

#include "kernels/simd/loop_variants.h"

namespace blockscope {
namespace {

const LoopVariants<RowProductKernels>& row_products() {
  static const LoopVariants<RowProductKernels> loops(BLOCKSCOPE_VARIANTS_OF(kRowProducts));
  return loops;
}

}  // namespace

const RowProductKernels* const* available_row_products(size_t* count) {
  *count = row_products().count;
  return row_products().variants.data();
}

const RowProductKernels& best_row_products() { return *row_products().variants[0]; }

}  // namespace blockscope
