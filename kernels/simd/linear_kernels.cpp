// Chooses the linear kernels at run time by the instruction sets of the processor.
#include "kernels/simd/linear_kernels.h"

#include <iterator>
#include <vector>

#include "kernels/simd/amx_support.h"
#include "kernels/simd/instruction_set.h"

namespace blockscope {

const LinearKernels* const* available_linear_kernels(Element element, int64_t* count) {
  static const std::vector<const LinearKernels*> float32 = [] {
    std::vector<const LinearKernels*> variants;
#if defined(__x86_64__)
    if (has_avx512()) variants.push_back(&kLinearKernelsAvx512);
#endif
    return variants;
  }();
  static const std::vector<const LinearKernels*> bfloat16 = [] {
    std::vector<const LinearKernels*> variants;
#if defined(__x86_64__)
    // If vectors would be several times slower than AMX, oneDNN, which has AMX, is used instead.
    // Our two variants are never mixed: their sums differ, and a row's sum must not depend on the
    // number of rows.
    if (has_avx512_bf16() && !has_amx_bf16()) variants.push_back(&kLinearKernelsAvx512Bf16);
    if (has_avx512() && may_use_amx() && multiplies_exactly(kLinearKernelsAmx)) {
      variants.push_back(&kLinearKernelsAmx);
    }
#endif
    return variants;
  }();
  static const std::vector<const LinearKernels*> none;
  const auto& variants = element == Element::kFloat32    ? float32
                         : element == Element::kBFloat16 ? bfloat16
                                                         : none;
  *count = std::ssize(variants);
  return variants.data();
}

}  // namespace blockscope
