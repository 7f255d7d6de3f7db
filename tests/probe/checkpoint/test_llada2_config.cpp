// config.json of LLaDA2 MoE: the published keys, the source of mask id and block length, and
// refusals by key of every value that would change the computation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/model_config.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using testing::HasSubstr;

/// dFactory, configs/model_configs/llada2_mini/config.json.
json mini_json() {
  return json::parse(R"({"architectures": ["LLaDA2MoeModelLM"], "attention_dropout": 0.0,
    "num_hidden_layers": 20, "hidden_size": 2048, "intermediate_size": 5120,
    "first_k_dense_replace": 1, "hidden_act": "silu", "max_position_embeddings": 16384,
    "model_type": "llada2_moe", "moe_intermediate_size": 512, "norm_topk_prob": true,
    "num_experts_per_tok": 8, "norm_head": false, "num_attention_heads": 16, "num_experts": 256,
    "num_key_value_heads": 4, "rope_theta": 600000, "rope_scaling": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_bias": false,
    "use_rmsnorm": true, "rms_norm_eps": 1e-06, "head_dim": 128, "num_shared_experts": 1,
    "use_cache": false, "use_qkv_bias": false, "embedding_dropout": 0.0, "norm_softmax": false,
    "output_dropout": 0.0, "vocab_size": 157184, "rotary_dim": 64,
    "using_split_qkv_in_self_attention": false, "router_dtype": "fp32",
    "moe_router_enable_expert_bias": true, "routed_scaling_factor": 2.5, "n_group": 8,
    "topk_group": 4, "score_function": "sigmoid", "initializer_range": 0.02,
    "max_window_layers": 28, "output_router_logits": false, "pad_token_id": 156892,
    "partial_rotary_factor": 0.5, "use_sliding_window": false})");
}

json with_llada2(const std::string& key, const json& value) {
  json config = mini_json();
  config[key] = value;
  return config;
}

ModelConfig parse_llada2(const json& config) {
  return parse_model_config({.folder = "/m", .config = config.dump()});
}

TEST(Llada2Config, ReadsThePublishedKeys) {
  const ModelConfig config = parse_llada2(mini_json());
  ASSERT_TRUE(config.moe.has_value());
  EXPECT_EQ(config.moe->num_experts, 256);
  EXPECT_EQ(config.moe->experts_per_token, 8);
  EXPECT_EQ(config.moe->num_groups, 8);
  EXPECT_EQ(config.moe->kept_groups, 4);
  EXPECT_EQ(config.moe->scaling, 2.5);
  EXPECT_EQ(config.moe->shared_size, 512);
  EXPECT_TRUE(config.moe->sigmoid);
  EXPECT_TRUE(config.moe->normalise);
  EXPECT_FALSE(config.moe->sparse[0]);
  EXPECT_TRUE(config.moe->sparse[1]);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_EQ(require_mask_token_id(config), 156895);
  EXPECT_EQ(require_block_length(config), 32);
  const json table = json::parse(resolved_json(config));
  EXPECT_EQ(table.at("mask_token_id").at("source"), "architecture table");
  EXPECT_EQ(table.at("expert_groups").at("source"), "config.json:n_group");
  EXPECT_EQ(table.at("expert_layers").at("source"), "first_k_dense_replace");
  EXPECT_EQ(table.at("rotary_dim").at("value"), 64);
}

TEST(Llada2Config, NamesTheTensorsOfThePublishedLayout) {
  const auto tensors = expected_tensors(parse_llada2(mini_json()));
  const auto shape_of = [&](const std::string& name) {
    for (const ExpectedTensor& tensor : tensors) {
      if (tensor.name == name) return tensor.shape;
    }
    return std::vector<std::int64_t>{};
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape_of("model.word_embeddings.weight"), (Shape{157184, 2048}));
  EXPECT_EQ(shape_of("model.layers.3.attention.query_key_value.weight"), (Shape{3072, 2048}));
  EXPECT_EQ(shape_of("model.layers.3.attention.dense.weight"), (Shape{2048, 2048}));
  EXPECT_EQ(shape_of("model.layers.3.attention.key_layernorm.weight"), (Shape{128}));
  EXPECT_EQ(shape_of("model.layers.0.mlp.gate_proj.weight"), (Shape{5120, 2048}));
  EXPECT_EQ(shape_of("model.layers.3.mlp.gate.weight"), (Shape{256, 2048}));
  EXPECT_EQ(shape_of("model.layers.3.mlp.gate.expert_bias"), (Shape{256}));
  EXPECT_EQ(shape_of("model.layers.3.mlp.experts.255.down_proj.weight"), (Shape{2048, 512}));
  EXPECT_EQ(shape_of("model.layers.3.mlp.shared_experts.up_proj.weight"), (Shape{512, 2048}));
  EXPECT_EQ(shape_of("model.layers.0.mlp.gate.weight"), Shape{});
  EXPECT_EQ(shape_of("model.layers.3.attention.query_key_value.bias"), Shape{});
  const auto with_bias = expected_tensors(parse_llada2(with_llada2("use_qkv_bias", true)));
  EXPECT_EQ(with_bias.size(), tensors.size() + 20);
}

TEST(Llada2Config, RefusesEveryOtherValueByItsKey) {
  const std::vector<std::pair<std::string, json>> refused = {
      {"use_qk_norm", false},
      {"use_rmsnorm", false},
      {"norm_head", true},
      {"norm_softmax", true},
      {"using_split_qkv_in_self_attention", true},
      {"moe_router_enable_expert_bias", false},
      {"norm_topk_prob", false},
      {"score_function", "softmax"},
      {"router_dtype", "bf16"},
      {"topk_method", "greedy"},
      {"num_nextn_predict_layers", 1},
      {"num_experts", 0},
      {"num_experts", "many"},
      {"num_local_experts", 8},
      {"n_group", 7},
      {"n_group", 256},
      {"n_group", nullptr},
      {"topk_group", 9},
      {"topk_group", 0},
      {"num_experts_per_tok", 129},
      {"num_experts_per_tok", 0},
      {"moe_intermediate_size", nullptr},
      {"moe_shared_expert_intermediate_size", 1024},
      {"routed_scaling_factor", -1.0},
      {"routed_scaling_factor", nullptr},
      {"moe_router_topk_scaling_factor", 2.0},
      {"num_shared_experts", -1},
      {"first_k_dense_replace", nullptr},
      {"partial_rotary_factor", nullptr},
      {"partial_rotary_factor", 0.0},
      {"partial_rotary_factor", 1.5},
      {"rotary_dim", 128},
      {"hidden_act", "gelu"},
      {"use_sliding_window", true}};
  for (const auto& [key, value] : refused) {
    EXPECT_THAT(checkpoint_error([&] { parse_llada2(with_llada2(key, value)); }),
                HasSubstr("key \"" + key + "\""))
        << value;
  }
}

/// The keys that LLaDA2.2-flash adds.
json flash_2_2_json() {
  json config = mini_json();
  config.update(json{{"expert_capacity", 48},
                     {"block_size", 32},
                     {"delete_token_id", 156930},
                     {"split_token_id", 156931},
                     {"use_qk_norm", true},
                     {"rope_theta", 3000000},
                     {"max_position_embeddings", 131072}});
  return config;
}

TEST(Llada2Config, ReadsBlockRoutingAndEditTokens) {
  const ModelConfig config = parse_llada2(flash_2_2_json());
  EXPECT_EQ(config.moe->expert_capacity, 48);
  EXPECT_EQ(config.moe->routing_block, 32);
  EXPECT_EQ(config.moe->num_groups, 1);  // the official code ignores n_group then
  EXPECT_EQ(config.moe->kept_groups, 1);
  EXPECT_EQ(config.delete_token_id, 156930);
  EXPECT_EQ(config.split_token_id, 156931);
  EXPECT_EQ(require_block_length(config), 32);
  const json table = json::parse(resolved_json(config));
  EXPECT_EQ(table.at("expert_capacity").at("value"), 48);
  EXPECT_EQ(table.at("routing_block").at("source"), "config.json:block_size");
  const ModelConfig without = parse_llada2(with_llada2("expert_capacity", 0));
  EXPECT_EQ(without.moe->expert_capacity, 0);
  EXPECT_EQ(without.moe->num_groups, 8);
  EXPECT_EQ(without.delete_token_id, -1);
}

TEST(Llada2Config, RefusesBlockRoutingAndEditTokensThatCannotWork) {
  const std::vector<std::pair<std::string, json>> refused = {
      {"expert_capacity", 7},      {"expert_capacity", 257},   {"expert_capacity", "all"},
      {"block_size", nullptr},     {"block_size", 0},          {"delete_token_id", nullptr},
      {"split_token_id", nullptr}, {"split_token_id", 156930}, {"delete_token_id", 157184}};
  for (const auto& [key, value] : refused) {
    json config = flash_2_2_json();
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
    EXPECT_THAT(checkpoint_error([&] { parse_llada2(config); }), HasSubstr(key)) << key << value;
  }
}

TEST(Llada2Config, RefusesTheStackedTrainingLayoutWithTheWayOut) {
  EXPECT_THAT(
      checkpoint_error([] { parse_llada2(with_llada2("model_type", "llada2_moe_veomni")); }),
      HasSubstr("moe_convertor.py"));
}

TEST(Llada2Config, OneExpertKeepsItsScoreAndNoSharedOneIsNoWidth) {
  json config = with_llada2("num_experts_per_tok", 1);
  config["num_shared_experts"] = nullptr;
  const ModelConfig parsed = parse_llada2(config);
  EXPECT_FALSE(parsed.moe->normalise);
  EXPECT_EQ(parsed.moe->shared_size, 0);
}

}  // namespace
}  // namespace blockscope
