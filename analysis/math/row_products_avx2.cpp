// Row products for AVX2 and FMA; flags in CMakeLists.txt.
#include "analysis/math/row_products_impl.h"

namespace blockscope {

const RowProductKernels kRowProductsAvx2 = make_row_products("avx2");

}  // namespace blockscope
