#include "kernels/cuda/library_products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_grouped_mm.h>

namespace blockscope {

at::Tensor library_grouped_product(const at::Tensor& rows, const at::Tensor& weights,
                                   const at::Tensor& ends) {
  const at::AutoDispatchBelowADInplaceOrView without_gradients;
  return at::_grouped_mm(rows, weights.transpose(1, 2), ends);
}

}  // namespace blockscope
