// Chooses the row kernels at run time from what the processor offers.
#include "kernels/simd/row_kernels.h"

#include <iterator>
#include <vector>

#include "kernels/simd/instruction_set.h"

namespace blockscope {

const RowKernels* const* available_row_kernels(int64_t* count) {
  static const std::vector<const RowKernels*> available = [] {
    std::vector<const RowKernels*> variants;
#if defined(__x86_64__)
    if (has_avx512()) variants.push_back(&kRowKernelsAvx512);
    if (has_avx2()) variants.push_back(&kRowKernelsAvx2);
#endif
    variants.push_back(&kRowKernelsBaseline);
    return variants;
  }();
  *count = std::ssize(available);
  return available.data();
}

}  // namespace blockscope
