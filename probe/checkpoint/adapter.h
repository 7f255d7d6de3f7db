// A LoRA adapter (arXiv 2106.09685) in PEFT's layout: a folder with adapter_config.json and
// adapter_model.safetensors. It changes a projection's weight W [out, in] to W + scale * B A, where
// A is [r, in], B is [out, r], and scale is lora_alpha / r (lora_alpha / sqrt(r) with rslora). Only
// the projections q, k, v and o of attention layers are supported. Everything else that would
// change the numbers is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "probe/checkpoint/model_config.h"
#include "probe/checkpoint/safetensors.h"

namespace blockscope {

/// The adapted projections' names: q, k, v, o on the command line.
inline constexpr const char* kAdapterModules = "qkvo";

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterWeightsName = "adapter_model.safetensors";
/// Metadata of our adapters' weights: the digest of the base checkpoint. PEFT ignores it.
inline constexpr const char* kBaseDigestKey = "blockscope_base_digest";

/// A projection that an adapter may change.
struct AdapterTarget {
  std::string weight;  // its name in the checkpoint, "model.layers.0.self_attn.q_proj.weight"
  std::int64_t out = 0, in = 0;

  std::string module() const;  // the name without ".weight"
  std::string a() const;       // PEFT's name of A, "base_model.model.<module>.lora_A.weight"
  std::string b() const;
};

/// The projections of all layers, layer by layer, in the order q, k, v, o. `modules` has some of
/// the letters "qkvo". Throws CheckpointError for a family whose q, k and v are one tensor.
std::vector<AdapterTarget> adapter_targets(const ModelConfig& config, std::string_view modules);

/// The part of an adapter for one weight. The tensors live as long as the adapter.
struct AdaptedWeight {
  AdapterTarget target;
  const TensorInfo* a = nullptr;  // [r, in]
  const TensorInfo* b = nullptr;  // [out, r]
  double scale = 1.0;
};

class Adapter {
 public:
  /// Checks every key, name, shape and dtype against the model. Throws CheckpointError.
  static Adapter open(const std::filesystem::path& folder, const ModelConfig& model);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<AdaptedWeight>& weights() const { return weights_; }
  /// The digest of the checkpoint that the adapter was trained on; empty: not recorded.
  std::string base_digest() const;
  /// 64 hex digits: SHA-256 over the names, scales, dtypes, shapes and all bytes.
  std::string digest() const;

 private:
  explicit Adapter(SafetensorsFile file) : file_(std::move(file)) {}
  std::filesystem::path folder_;
  SafetensorsFile file_;
  std::vector<AdaptedWeight> weights_;
};

/// How a new adapter is made.
struct LoraOptions {
  std::string modules = "qkvo";
  std::int64_t rank = 32;
  double alpha = 32.0;
  double dropout = 0.1;

  double scale() const { return alpha / static_cast<double>(rank); }
};

/// The text of adapter_config.json. `base` is the name of the base checkpoint.
std::string adapter_config_json(const LoraOptions& options, const ModelConfig& model,
                                const std::string& base);

}  // namespace blockscope
