#include "probe/train/flat_parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;
constexpr double kEpsilon = 1e-8;

std::int64_t size_of(const ExpectedTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

std::int64_t total_size(const std::vector<ExpectedTensor>& tensors) {
  std::int64_t size = 0;
  for (const ExpectedTensor& tensor : tensors) size += size_of(tensor);
  return size;
}

}  // namespace

StateFile::StateFile(const std::filesystem::path& path) : file_(SafetensorsFile::open(path)) {}

const std::string& StateFile::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end()) {
    throw CheckpointError(file_.path().string() + ": expected metadata '" + key +
                          "', got none. HINT: pass a state.safetensors of blockscope train");
  }
  return found->second;
}

std::int64_t StateFile::number(const std::string& key) const {
  try {
    return std::stoll(text(key));
  } catch (const std::logic_error&) {
    throw CheckpointError(fmt::format("{}: metadata '{}': expected a whole number, got '{}'",
                                      file_.path().string(), key, text(key)));
  }
}

void StateFile::expect(const std::string& key, const std::string& expected) const {
  if (text(key) == expected) return;
  throw CheckpointError(file_.path().string() + ": expected " + key + " '" + expected + "', got '" +
                        text(key) + "'. HINT: name the folder of that run with --work");
}

FlatParameters::FlatParameters(const std::vector<ExpectedTensor>& tensors, at::Device device)
    : flat_(at::zeros({total_size(tensors)}, device)),
      gradient_(at::zeros_like(flat_)),
      first_moment_(at::zeros_like(flat_)),
      second_moment_(at::zeros_like(flat_)),
      decay_(at::zeros_like(flat_)) {
  std::int64_t offset = 0;
  for (const ExpectedTensor& tensor : tensors) {
    const std::int64_t size = size_of(tensor);
    const auto view = [&](const at::Tensor& of) {
      return of.narrow(0, offset, size).view(tensor.shape).detach();
    };
    at::Tensor leaf = view(flat_);
    leaf.set_requires_grad(true);
    leaf.mutable_grad() = view(gradient_);
    leaves_.emplace(tensor.name, leaf);
    if (tensor.shape.size() >= 2) decay_.narrow(0, offset, size).fill_(1.0);
    offset += size;
  }
}

double FlatParameters::step(double learning_rate, const AdamOptions& options, std::int64_t done) {
  at::NoGradGuard no_grad;
  const double norm = gradient_.norm().item<double>();
  if (!std::isfinite(norm)) {
    throw Error("train: the gradient of step " + std::to_string(done) +
                " is not finite. HINT: lower the learning rate and resume from the last state");
  }
  if (norm > options.clip) gradient_.mul_(options.clip / norm);
  first_moment_.lerp_(gradient_, 1.0 - kBeta1);
  second_moment_.mul_(kBeta2).addcmul_(gradient_, gradient_, 1.0 - kBeta2);
  const auto t = static_cast<double>(done + 1);
  const double correction1 = 1.0 - std::pow(kBeta1, t);
  const double correction2 = 1.0 - std::pow(kBeta2, t);
  flat_.addcmul_(flat_, decay_, -learning_rate * options.weight_decay);
  const at::Tensor denominator = second_moment_.sqrt().div_(std::sqrt(correction2)).add_(kEpsilon);
  flat_.addcdiv_(first_moment_, denominator, -learning_rate / correction1);
  gradient_.zero_();
  return norm;
}

void FlatParameters::save(const std::filesystem::path& path,
                          const std::map<std::string, std::string>& metadata) const {
  const std::vector<std::pair<const char*, at::Tensor>> vectors = {
      {"weights", flat_}, {"first_moment", first_moment_}, {"second_moment", second_moment_}};
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, vector] : vectors) {
    entries.push_back({name, TensorDtype::kF32, {vector.numel()}});
  }
  SafetensorsWriter writer(path, entries, metadata);
  for (const auto& [name, vector] : vectors) {
    const at::Tensor host = vector.cpu().contiguous();
    writer.write(name, host.const_data_ptr(), static_cast<std::size_t>(host.nbytes()));
  }
  writer.finish();
}

void FlatParameters::load(const StateFile& state) {
  for (auto& [name, vector] :
       std::vector<std::pair<std::string, at::Tensor>>{{"weights", flat_},
                                                       {"first_moment", first_moment_},
                                                       {"second_moment", second_moment_}}) {
    const TensorInfo* info = state.file().find(name);
    const std::vector<std::int64_t> shape{vector.numel()};
    if (info == nullptr || info->dtype != TensorDtype::kF32 || info->shape != shape) {
      throw CheckpointError(state.file().path().string() + ": expected F32 tensor " + name + " " +
                            shape_text(shape) + ". HINT: the model's shape has changed");
    }
    // from_blob needs a mutable pointer, but the copy below only reads it.
    void* data = const_cast<std::byte*>(info->data);
    vector.copy_(at::from_blob(data, shape, at::kFloat));
  }
}

}  // namespace blockscope
