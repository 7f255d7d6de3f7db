// From mapped safetensors to the model's weights.
#include <ATen/ATen.h>

#include <utility>

#include "probe/model/block_diffusion_model.h"

namespace blockscope {
namespace {

at::ScalarType scalar_type(TensorDtype dtype) {
  switch (dtype) {
    case TensorDtype::kF64:
      return at::kDouble;
    case TensorDtype::kF16:
      return at::kHalf;
    case TensorDtype::kBF16:
      return at::kBFloat16;
    default:
      return at::kFloat;  // Checkpoint::open lets only floating point tensors through
  }
}

}  // namespace

BlockDiffusionModel BlockDiffusionModel::load(const Checkpoint& checkpoint, at::ScalarType dtype,
                                              at::Device device) {
  WeightMap weights;
  for (const ExpectedTensor& expected : expected_tensors(checkpoint.config())) {
    const TensorInfo& info = checkpoint.at(expected.name);
    // from_blob wants a mutable pointer; the copy below only reads the read-only mapping.
    auto* data =
        const_cast<std::byte*>(info.data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    const at::Tensor mapped = at::from_blob(data, info.shape, at::dtype(scalar_type(info.dtype)));
    // A bias rounded to bfloat16 chooses other experts; the official engines keep it as it is.
    const at::ScalarType type = expected.name.ends_with(".expert_bias") ? at::kFloat : dtype;
    weights.emplace(expected.name, mapped.to(device, type, /*non_blocking=*/false, /*copy=*/true));
  }
  return BlockDiffusionModel(checkpoint.config(), std::move(weights));
}

}  // namespace blockscope
