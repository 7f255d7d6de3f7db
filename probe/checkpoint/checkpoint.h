// A checkpoint folder in the Hugging Face layout: its configuration and its (sharded) weights. The
// weights are mapped, and checked against the family's weight names. Opening reads headers only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "probe/checkpoint/adapter.h"
#include "probe/checkpoint/model_config.h"
#include "probe/checkpoint/safetensors.h"
#include "probe/checkpoint/weight_names.h"

namespace blockscope {

/// Names as in weight_names.h; projections are [out, in], row-major. For the Qwen and SDAR
/// families:
///   model.embed_tokens.weight [V, hidden]; model.norm.weight [hidden]
///   lm_head.weight [V, hidden] (unless tied)
///   model.layers.N.{input,post_attention}_layernorm.weight [hidden]
///   model.layers.N.self_attn.{q,k,v,o}_proj.weight (+ .bias with attention_bias, of o with
///   attention_output_bias)
///   model.layers.N.self_attn.{q,k}_norm.weight [head_dim]
///   model.layers.N.mlp.{gate,up,down}_proj.weight; in a layer with experts mlp.gate.weight
///   [E, hidden] and mlp.experts.E.{gate,up,down}_proj.weight; with sigmoid scores also
///   mlp.gate.expert_bias [E], and mlp.shared_experts.{gate,up,down}_proj.weight
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

/// Movable; every `TensorInfo` and its `data` stay valid as long as the checkpoint lives.
class Checkpoint {
 public:
  /// Reads model.safetensors, or the shards of model.safetensors.index.json, and checks names and
  /// shapes against `expected_tensors(config)`. Throws one CheckpointError that lists missing,
  /// misshapen and unknown tensors (the first 10 of each). Harmless extras are accepted: rotary
  /// inv_freq, and a copy of the tied embedding as lm_head.weight.
  static Checkpoint open(const std::filesystem::path& folder, const ModelOverrides& overrides = {});

  /// Adds an adapter: the loaded model has its sums, and digest() covers it. Throws CheckpointError
  /// if the adapter does not fit, or was trained on another checkpoint.
  void adapt(const std::filesystem::path& adapter_folder);
  const std::optional<Adapter>& adapter() const { return adapter_; }

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::size_t num_tensors() const { return by_name_.size(); }
  std::uint64_t total_bytes() const;
  /// nullptr if there is no tensor of this name.
  const TensorInfo* find(std::string_view name) const;
  /// Throws CheckpointError naming the tensor.
  const TensorInfo& at(std::string_view name) const;
  /// Throws one CheckpointError that lists what is missing, misshapen, or unknown. Only floating
  /// point tensors (F32, F16, BF16) are accepted for expected names.
  void check_tensors(const std::vector<ExpectedTensor>& expected) const;

  /// 64 hex digits: SHA-256 over the resolved config values that decide the model's numbers, then,
  /// for every tensor in name order, its name, dtype, shape and first and last 64 KiB. Sharded and
  /// single files give the same digest. An adapter's digest is included. Reads at most 128 KiB per
  /// tensor, so an 8B model takes well under a second if its files are cached.
  std::string digest() const;

 private:
  Checkpoint() = default;
  std::filesystem::path folder_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, const TensorInfo*> by_name_;
  std::optional<Adapter> adapter_;
};

/// Identifies the meaning of token ids: SHA-256 of the folder's tokenizer.json, 64 hex digits.
/// Throws CheckpointError if there is no such file.
std::string tokenizer_digest(const std::filesystem::path& folder);

}  // namespace blockscope
