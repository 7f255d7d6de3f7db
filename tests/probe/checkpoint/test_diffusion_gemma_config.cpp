// DiffusionGemma's config.json: layers of two kinds, in both spellings, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "decode_record/base/error.h"
#include "decode_record/schema/layer_sizes.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/model_config.h"
#include "probe/checkpoint/rope.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// As transformers 5.23 saves it, without the vision tower's keys.
json gemma_keys() {
  return json::parse(R"({
    "architectures": ["DiffusionGemmaForBlockDiffusion"], "model_type": "diffusion_gemma",
    "boi_token_id": 255999, "eoi_token_id": 258882, "image_token_id": 258880,
    "canvas_length": 256, "dtype": "bfloat16", "initializer_range": 0.02,
    "tie_word_embeddings": true, "transformers_version": "5.23.0",
    "vision_config": {"model_type": "gemma4_vision"},
    "text_config": {
      "model_type": "diffusion_gemma_text", "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 2, "dtype": "bfloat16", "eos_token_id": 1, "final_logit_softcapping": 30.0,
      "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2816,
      "initializer_range": 0.02, "intermediate_size": 2112, "max_position_embeddings": 131072,
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
      "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
      "num_hidden_layers": 3, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-06,
      "per_layer_config": {"2": {"head_dim": 512, "num_key_value_heads": 2}},
      "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                           "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
      "sliding_window": 1024, "tie_word_embeddings": true, "top_k_experts": 8,
      "use_bidirectional_attention": null, "vocab_size": 262144}})");
}

ModelConfig gemma_config(const json& config, const ModelOverrides& overrides = {}) {
  return parse_model_config({.folder = "/m", .config = config.dump()}, overrides);
}

/// The published keys with one changed, by its place.
json with_key(const char* place, const json& value) {
  json config = gemma_keys();
  config[json::json_pointer(place)] = value;
  return config;
}

TEST(DiffusionGemmaConfig, LayersDiffer) {
  const ModelConfig config = gemma_config(gemma_keys());
  const LayerSizes sizes = layer_sizes(config);
  EXPECT_THAT(sizes.layer_head_dim, ElementsAre(256, 256, 512));
  EXPECT_THAT(sizes.layer_kv_heads, ElementsAre(8, 8, 2));
  EXPECT_THAT(sizes.layer_window, ElementsAre(1024, 1024, 0));
  EXPECT_EQ(config.head_dim, 512);
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_FALSE(config.layer(0).values_are_keys);
  EXPECT_TRUE(config.layer(2).values_are_keys);
  EXPECT_EQ(config.block_length->value, 256);
  EXPECT_FALSE(config.mask_token_id.has_value());
  ASSERT_TRUE(config.gemma.has_value());
  EXPECT_DOUBLE_EQ(config.gemma->embed_scale, std::sqrt(2816.0));
  ASSERT_TRUE(config.moe.has_value());
  EXPECT_EQ(config.moe->experts_per_token, 8);
}

TEST(DiffusionGemmaConfig, TheOlderKeysSayTheSame) {
  json config = gemma_keys();
  json& text = config["text_config"];
  text.erase("per_layer_config");
  text["global_head_dim"] = 512;
  text["num_global_key_value_heads"] = 2;
  text["attention_k_eq_v"] = true;
  EXPECT_EQ(layer_sizes(gemma_config(config)), layer_sizes(gemma_config(gemma_keys())));
}

TEST(DiffusionGemmaConfig, LayerNumbersMayHaveZerosInFront) {
  json config = gemma_keys();
  json& listed = config["text_config"]["per_layer_config"];
  listed["02"] = listed["2"];
  EXPECT_THAT(checkpoint_error([&] { gemma_config(config); }), HasSubstr("per_layer_config"));
  listed.erase("2");
  EXPECT_EQ(layer_sizes(gemma_config(config)), layer_sizes(gemma_config(gemma_keys())));
}

TEST(DiffusionGemmaConfig, AQuarterOfTheGlobalPairsTurn) {
  const ModelConfig config = gemma_config(gemma_keys());
  const auto global = rope_inverse_frequencies(config.layer(2).rope, 512, 1).inv_freq;
  ASSERT_EQ(global.size(), 256u);
  EXPECT_DOUBLE_EQ(global[1], std::pow(1e6, -2.0 / 512.0));  // over the whole head, not a quarter
  EXPECT_GT(global[63], 0.0);
  EXPECT_EQ(global[64], 0.0);
  const auto local = rope_inverse_frequencies(config.layer(0).rope, 256, 1).inv_freq;
  EXPECT_DOUBLE_EQ(local[127], std::pow(1e4, -254.0 / 256.0));
}

TEST(DiffusionGemmaConfig, TheLastLayerSeesAllKeys) {
  json config = with_key("/text_config/layer_types",
                         {"sliding_attention", "sliding_attention", "sliding_attention"});
  EXPECT_EQ(gemma_config(config).layer(2).window, 0);
}

/// transformers writes an empty per_layer_config where all layers have the same sizes, and reads it
/// without global_head_dim.
TEST(DiffusionGemmaConfig, AnEmptyListMeansOneSizeForAllLayers) {
  const ModelConfig config =
      gemma_config(with_key("/text_config/per_layer_config", json::object()));
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    EXPECT_EQ(config.layer(layer).head_dim, 256);
    EXPECT_EQ(config.layer(layer).num_kv_heads, config.layer(0).num_kv_heads);
  }
  EXPECT_EQ(config.layer(2).window, 0);
}

TEST(DiffusionGemmaConfig, DefaultsAreThoseOfTransformers) {
  json keys = gemma_keys();
  keys["text_config"].erase("head_dim");
  EXPECT_EQ(gemma_config(keys).layer(0).head_dim, 256);
  EXPECT_EQ(gemma_config(with_key("/text_config/hidden_act", "silu")).num_layers, 3)
      << "only hidden_activation counts";
}

TEST(DiffusionGemmaConfig, WhatWeDoNotDoIsRefusedByName) {
  const std::vector<std::pair<const char*, json>> changes = {
      {"/tie_word_embeddings", false},
      {"/text_config/attention_bias", true},
      {"/text_config/hidden_activation", "silu"},
      {"/text_config/use_bidirectional_attention", "all"},
      {"/text_config/layer_types/0", "linear_attention"},
      {"/text_config/sliding_window", 1},
      {"/text_config/sliding_window", nullptr},
      {"/text_config/num_experts", nullptr},
      {"/text_config/final_logit_softcapping", nullptr},
      {"/text_config/top_k_experts", 129},
      {"/text_config/rope_parameters/full_attention/rope_type", "yarn"},
      {"/text_config/rope_parameters/sliding_attention/partial_rotary_factor", 0.5},
      {"/text_config/per_layer_config/2/num_key_value_heads", 3},
      {"/text_config/per_layer_config/0", {{"head_dim", 128}}},
      {"/text_config/per_layer_config/last", {{"head_dim", 128}}},
      {"/text_config/use_double_wide_mlp", true},
      {"/text_config/num_kv_shared_layers", 4},
      {"/text_config/a_key_of_tomorrow", 1},
      {"/a_key_of_tomorrow", 1},
      {"/audio_config", {{"model_type", "x"}}},
      {"/canvas_length", 0}};
  for (const auto& [place, value] : changes) {
    SCOPED_TRACE(place);
    const std::string message = checkpoint_error([&] { gemma_config(with_key(place, value)); });
    EXPECT_THAT(message, AllOf(HasSubstr("/m/config.json"), HasSubstr("expected")));
  }
}

ModelConfig decoded_config(const json& generation) {
  return parse_model_config(
      {.folder = "/m", .config = gemma_keys().dump(), .generation_config = generation.dump()}, {});
}

TEST(DiffusionGemmaConfig, TheGenerationConfigDecides) {
  const ModelConfig config = decoded_config(
      {{"max_denoising_steps", 12},
       {"sampler_config", {{"_cls_name", "EntropyBoundSamplerConfig"}, {"entropy_bound", 0.25}}},
       {"t_max", 0.9},
       {"t_min", nullptr},
       {"stability_threshold", 2},
       {"confidence_threshold", 0.5}});
  EXPECT_EQ(config.gemma->strategy_options,
            ",entropy_bound=0.25,t_max=0.9,stable_steps=2,stop_entropy=0.5");
  EXPECT_EQ(config.gemma->denoising_steps, 12);
  EXPECT_EQ(decoded_config({{"eos_token_id", 1}, {"cache_implementation", "static"}})
                .gemma->strategy_options,
            "");
}

TEST(DiffusionGemmaConfig, OnlyTheGenerationConfigNamesStopTokens) {
  ASSERT_TRUE(gemma_keys()["text_config"].contains("eos_token_id"));
  EXPECT_TRUE(gemma_config(gemma_keys()).stop_token_ids.empty());
  EXPECT_TRUE(decoded_config({{"eos_token_id", nullptr}}).stop_token_ids.empty());
  EXPECT_EQ(decoded_config({{"eos_token_id", {1, 106}}}).stop_token_ids,
            (std::vector<std::int64_t>{1, 106}));
}

TEST(DiffusionGemmaConfig, AGenerationConfigOutOfRangeIsRefusedByName) {
  for (const json& wrong :
       {json{{"max_denoising_steps", 0}}, json{{"t_max", 0.3}}, json{{"t_min", 0.8}},
        json{{"t_max", "warm"}}, json{{"stability_threshold", -1}},
        json{{"confidence_threshold", 0}}, json{{"sampler_config", {{"_cls_name", "Other"}}}},
        json{{"sampler_config", {{"entropy_bound", 1}, {"more", 1}}}}, json{{"temperature", 0.5}},
        json{{"suppress_tokens", {1}}}, json{{"cache_implementation", "quantized"}}}) {
    SCOPED_TRACE(wrong.dump());
    EXPECT_THAT(checkpoint_error([&] { decoded_config(wrong); }),
                HasSubstr("/m/generation_config.json"));
  }
}

TEST(DiffusionGemmaConfig, ACanvasHasNoMaskToken) {
  EXPECT_THROW(gemma_config(gemma_keys(), {.mask_token_id = 4}), UsageError);
  EXPECT_EQ(gemma_config(gemma_keys(), {.block_length = 32}).block_length->value, 32);
}

TEST(DiffusionGemmaConfig, EncoderAndDecoderShareAllButTheirFactors) {
  std::set<std::string> names;
  for (const ExpectedTensor& tensor :
       family_of(gemma_config(gemma_keys()))
           .tensors(family_of(gemma_config(gemma_keys())).weights, gemma_config(gemma_keys()))) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
  }
  EXPECT_TRUE(names.contains("model.encoder.language_model.layers.1.layer_scalar"));
  EXPECT_TRUE(names.contains("model.decoder.layers.1.self_attn.v_proj.weight"));
  EXPECT_FALSE(names.contains("model.decoder.layers.2.self_attn.v_proj.weight"));
}

}  // namespace
}  // namespace blockscope
