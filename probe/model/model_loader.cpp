// From mapped safetensors to the model's weights.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
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

/// Tensors with equal keys and rows of equal length lie next to each other, so that one product can
/// take them all: those of the same rows (queries, keys and values; gate and up), and those of all
/// experts of a layer on a device. (On a CPU each expert is packed for itself, and frees its
/// memory.)
std::string key_of(const WeightNames& names, std::string name, at::Device device) {
  for (const auto& [second, first] : {std::pair{names.k, names.q}, std::pair{names.v, names.q},
                                      std::pair{names.up, names.gate}}) {
    const size_t found = second.empty() ? std::string::npos : name.rfind(second);
    if (found != std::string::npos) name.replace(found, second.size(), first);
  }
  static const std::string experts = ".experts.";
  const size_t expert = name.find(experts);
  if (expert == std::string::npos || device.is_cpu()) return name;
  const size_t number = expert + experts.size();
  return name.erase(number, name.find_first_not_of("0123456789", number) - number);
}

}  // namespace

WeightMap empty_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  const WeightNames& names = family_of(config).weights;
  using Key = std::pair<std::string, std::vector<int64_t>>;  // and the sizes behind the first one
  std::map<Key, std::vector<const ExpectedTensor*>> groups;
  const std::vector<ExpectedTensor> expected = expected_tensors(config);
  for (const ExpectedTensor& tensor : expected) {
    const auto& shape = tensor.shape;
    groups[{key_of(names, tensor.name, device), {shape.begin() + 1, shape.end()}}].push_back(
        &tensor);
  }
  WeightMap weights;
  for (const auto& [key, tensors] : groups) {
    std::vector<int64_t> shape = tensors.front()->shape;
    shape.front() = 0;
    for (const ExpectedTensor* tensor : tensors) shape.front() += tensor->shape.front();
    // Rounding this bias to bfloat16 would choose other experts; the official engines keep float32.
    const bool exact = key.first.ends_with(".expert_bias");
    const at::Tensor all = at::empty(shape, at::dtype(exact ? at::kFloat : dtype).device(device));
    int64_t row = 0;
    for (const ExpectedTensor* tensor : tensors) {
      const int64_t rows = tensor->shape.front();
      weights.emplace(tensor->name, all.narrow(0, row, rows));
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
