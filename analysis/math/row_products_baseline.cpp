// Row products for every processor; flags in CMakeLists.txt.
#include "analysis/math/row_products_impl.h"

namespace blockscope {

const RowProductKernels kRowProductsBaseline = make_row_products("baseline");

}  // namespace blockscope
