// Row products for AVX-512; flags in CMakeLists.txt.
#include "analysis/math/row_products_impl.h"

namespace blockscope {

const RowProductKernels kRowProductsAvx512 = make_row_products("avx512");

}  // namespace blockscope
