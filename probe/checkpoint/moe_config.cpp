#include "probe/checkpoint/moe_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "probe/checkpoint/config_limits.h"

namespace blockscope {
namespace {}  // namespace

std::optional<MoeConfig> parse_moe_config(const JsonObject& file, std::int64_t num_layers,
                                          std::int64_t max_width) {
  MoeConfig config;
  // transformers 5 saves the number under the second name.
  const char* key = file.has("num_local_experts") ? "num_local_experts" : "num_experts";
  config.num_experts = file.integer(key, 0, kMaxExperts);
  const auto other = file.optional_integer("num_experts", 0, kMaxExperts);
  if (other.value_or(config.num_experts) != config.num_experts) {
    file.fail("num_experts", fmt::format("the {} of num_local_experts", config.num_experts));
  }
  if (config.num_experts == 0) {
    file.pass_over({"num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
                    "decoder_sparse_step", "mlp_only_layers"});
    return std::nullopt;
  }
  config.experts_per_token = file.integer("num_experts_per_tok", 1, config.num_experts);
  config.intermediate_size = file.integer("moe_intermediate_size", 1, max_width);
  config.normalise = file.optional_boolean("norm_topk_prob").value_or(false);
  const std::int64_t every =
      file.optional_integer("decoder_sparse_step", 1, num_layers).value_or(1);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    config.sparse.push_back((layer + 1) % every == 0);
  }
  if (!file.has("mlp_only_layers")) return config;
  const nlohmann::json& dense = file.raw().at("mlp_only_layers");
  if (!dense.is_array()) file.fail("mlp_only_layers", "a list of layers");
  for (const nlohmann::json& layer : dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= num_layers) {
      file.fail("mlp_only_layers", fmt::format("layers from 0 to {}", num_layers - 1));
    }
    config.sparse[layer.get<std::size_t>()] = false;
  }
  return config;
}

}  // namespace blockscope
