// Trained parameters as one flat float32 vector, with their gradient and AdamW's moments. The leaf
// tensors of a model are views of it. And the state file of a training, which holds these vectors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "probe/checkpoint/checkpoint.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

/// A state file's metadata. Throws CheckpointError for keys that are missing or have other values.
class StateFile {
 public:
  explicit StateFile(const std::filesystem::path& path);

  const SafetensorsFile& file() const { return file_; }
  const std::string& text(const std::string& key) const;
  std::int64_t number(const std::string& key) const;
  void expect(const std::string& key, const std::string& expected) const;

 private:
  SafetensorsFile file_;
};

/// AdamW's settings besides the learning rate. Betas are 0.9 and 0.95, epsilon is 1e-8.
struct AdamOptions {
  double weight_decay = 0.01;  // decoupled; matrices only
  double clip = 1.0;           // gradient norm
};

class FlatParameters {
 public:
  FlatParameters(const std::vector<ExpectedTensor>& tensors, at::Device device);

  /// Leaves that share the vector's memory, and whose gradients share the gradient's.
  const WeightMap& leaves() const { return leaves_; }

  /// One step of AdamW, number `done` + 1; clears the gradient. Returns the gradient's norm before
  /// clipping. Throws Error for a gradient that is not finite.
  double step(double learning_rate, const AdamOptions& options, std::int64_t done);

  /// Vectors and metadata as one safetensors file (float32).
  void save(const std::filesystem::path& path,
            const std::map<std::string, std::string>& metadata) const;
  void load(const StateFile& state);

 private:
  at::Tensor flat_, gradient_, first_moment_, second_moment_;  // float32 [number of parameters]
  at::Tensor decay_;                                           // 1 where weight decay applies
  WeightMap leaves_;
};

}  // namespace blockscope
