// From mapped safetensors to the model's weights.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
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
      return at::kFloat;  // Checkpoint::open accepts only floating point tensors
  }
}

/// Whether the tensor `name` is multiplied with the same rows as the tensor `before`, which comes
/// before it in expected_tensors().
bool shares_rows(const WeightNames& names, const std::string& before, const std::string& name) {
  for (const auto& [first, second] : {std::pair{names.q, names.k}, std::pair{names.k, names.v},
                                      std::pair{names.gate, names.up}}) {
    const size_t found = first.empty() ? std::string::npos : before.rfind(first);
    if (found == std::string::npos) continue;
    std::string follower = before;
    if (follower.replace(found, first.size(), second) == name) return true;
  }
  return false;
}

}  // namespace

WeightMap empty_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  const WeightNames& names = family_of(config).weights;
  const std::vector<ExpectedTensor> expected = expected_tensors(config);
  WeightMap weights;
  for (size_t first = 0, end = 0; first < expected.size(); first = end) {
    std::vector<int64_t> shape = expected[first].shape;
    for (end = first + 1;
         end < expected.size() && shares_rows(names, expected[end - 1].name, expected[end].name);
         ++end) {
      shape.front() += expected[end].shape.front();
    }
    // Rounding this bias to bfloat16 would choose other experts; the official engines keep float32.
    const bool exact = expected[first].name.ends_with(".expert_bias");
    const at::Tensor all = at::empty(shape, at::dtype(exact ? at::kFloat : dtype).device(device));
    int64_t row = 0;
    for (size_t i = first; i < end; ++i) {
      const int64_t rows = expected[i].shape.front();
      weights.emplace(expected[i].name, all.narrow(0, row, rows));
      row += rows;
    }
  }
  return weights;
}

namespace {

/// The tensor in its file's dtype. It reads the mapping.
at::Tensor mapped(const TensorInfo& info) {
  // from_blob needs a mutable pointer, but callers only read the read-only mapping.
  auto* data = const_cast<std::byte*>(info.data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return at::from_blob(data, info.shape, at::dtype(scalar_type(info.dtype)));
}

/// A part of an adapter in float32, finite.
at::Tensor adapter_part(const Adapter& adapter, const TensorInfo& info) {
  at::Tensor values = mapped(info).to(at::kFloat);
  if (values.isfinite().all().item<bool>()) return values;
  throw CheckpointError(
      fmt::format("{}: tensor \"{}\": expected finite numbers, got {} that are not. HINT: its "
                  "training diverged; use an earlier adapter",
                  (adapter.folder() / kAdapterWeightsName).string(), info.name,
                  values.isfinite().logical_not().sum().item<int64_t>()));
}

}  // namespace

at::Tensor adapted_weight(const Checkpoint& checkpoint, const std::string& name) {
  const at::Tensor own = mapped(checkpoint.at(name));
  if (!checkpoint.adapter()) return own;
  const Adapter& adapter = *checkpoint.adapter();
  for (const AdaptedWeight& part : adapter.weights()) {
    if (part.target.weight != name) continue;
    const at::Tensor a = adapter_part(adapter, *part.a);
    const at::Tensor b = adapter_part(adapter, *part.b);
    return at::addmm(own.to(at::kFloat), b, a, 1.0, part.scale);
  }
  return own;
}

BlockDiffusionModel BlockDiffusionModel::load(const Checkpoint& checkpoint, at::ScalarType dtype,
                                              at::Device device) {
  WeightMap weights = empty_weights(checkpoint.config(), dtype, device);
  for (auto& [name, weight] : weights) {
    weight.copy_(adapted_weight(checkpoint, name));
  }
  return BlockDiffusionModel(checkpoint.config(), std::move(weights));
}

}  // namespace blockscope
