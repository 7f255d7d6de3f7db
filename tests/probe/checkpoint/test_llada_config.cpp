// config.json of LLaDA: the published keys, what the official configuration means where one is
// absent, and every value that would change the computation is refused by its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "probe/checkpoint/model_config.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using testing::AllOf;
using testing::HasSubstr;

/// The keys of GSAI-ML/LLaDA-8B-Instruct that decide numbers.
json published() {
  return json::parse(R"({"architectures": ["LLaDAModelLM"], "model_type": "llada",
    "activation_type": "silu", "alibi": false, "attention_layer_norm": false,
    "bias_for_layer_norm": false, "block_group_size": 1, "block_type": "llama", "d_model": 4096,
    "embedding_size": 126464, "eos_token_id": 126081, "include_bias": false,
    "include_qkv_bias": false, "input_emb_norm": false, "layer_norm_type": "rms",
    "layer_norm_with_affine": true, "mask_token_id": 126336, "max_sequence_length": 4096,
    "mlp_hidden_size": 12288, "mlp_ratio": 4, "multi_query_attention": null, "n_heads": 32,
    "n_kv_heads": 32, "n_layers": 32, "pad_token_id": 126081, "rms_norm_eps": 1e-05, "rope": true,
    "rope_full_precision": true, "rope_theta": 500000.0, "scale_logits": false,
    "vocab_size": 126464, "weight_tying": false})");
}

ModelConfig parse_llada(const json& config) {
  return parse_model_config({.folder = "/m", .config = config.dump()});
}

json with(const json& change) {
  json config = published();
  config.update(change);
  return config;
}

TEST(LladaConfig, ThePublishedKeysAreRead) {
  const ModelConfig config = parse_llada(published());
  EXPECT_EQ(config.num_layers, 32);
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.intermediate_size, 12288);
  EXPECT_EQ(config.mask_token_id->value, 126336);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(LladaConfig, WhatMeansAnotherModelWhereItIsAbsentIsRefused) {
  for (const auto& [key, meant] : {std::pair{"block_type", "sequential"},
                                   {"layer_norm_type", "LayerNorm"},
                                   {"rope", "RoPE"}}) {
    const auto named =
        AllOf(HasSubstr("/m/config.json: key \"" + std::string(key) + "\": expected"),
              HasSubstr("HINT: without this key"), HasSubstr(meant));
    json config = published();
    config.erase(key);
    EXPECT_THAT(checkpoint_error([&] { parse_llada(config); }),
                AllOf(named, HasSubstr("got nothing")));
    EXPECT_THAT(checkpoint_error([&] {
                  parse_llada(with({{key, nullptr}}));
                }),
                AllOf(named, HasSubstr("got null")));
  }
}

TEST(LladaConfig, KeyHeadsSaidTwiceMustAgree) {
  const json multi = {{"n_kv_heads", 1}, {"multi_query_attention", true}};
  EXPECT_EQ(parse_llada(with(multi)).num_kv_heads, 1);
  EXPECT_EQ(parse_llada(with({{"multi_query_attention", false}})).num_kv_heads, 32);
  EXPECT_EQ(parse_llada(with({{"n_kv_heads", 4}})).num_kv_heads, 4);
  EXPECT_EQ(parse_llada(with({{"n_kv_heads", nullptr}})).num_kv_heads, 32);
  EXPECT_EQ(
      parse_llada(with({{"n_kv_heads", nullptr}, {"multi_query_attention", true}})).num_kv_heads,
      1);
  const std::vector<std::pair<int, bool>> contradictions = {
      {32, true}, {4, true}, {4, false}, {1, false}};
  for (const auto& [heads, single] : contradictions) {
    const json both = {{"n_kv_heads", heads}, {"multi_query_attention", single}};
    EXPECT_THAT(checkpoint_error([&] { parse_llada(with(both)); }),
                AllOf(HasSubstr("key \"multi_query_attention\""),
                      HasSubstr("n_kv_heads " + std::to_string(heads)),
                      HasSubstr(single ? "got true" : "got false"), HasSubstr("HINT")));
  }
}

TEST(LladaConfig, GroupsOfLayersChangeNoNumber) {
  EXPECT_EQ(resolved_json(parse_llada(with({{"block_group_size", 4}}))),
            resolved_json(parse_llada(published())));
}

TEST(LladaConfig, RefusesWhatTheRuntimeWouldComputeOtherwise) {
  const std::vector<std::pair<const char*, json>> refused = {{"block_type", "sequential"},
                                                             {"layer_norm_type", "default"},
                                                             {"activation_type", "gelu"},
                                                             {"alibi", true},
                                                             {"rope", false},
                                                             {"rope_full_precision", false},
                                                             {"include_bias", true},
                                                             {"include_qkv_bias", "no"},
                                                             {"bias_for_layer_norm", true},
                                                             {"layer_norm_with_affine", false},
                                                             {"scale_logits", true},
                                                             {"input_emb_norm", true},
                                                             {"attention_layer_norm", true},
                                                             {"n_layers", nullptr},
                                                             {"max_sequence_length", nullptr},
                                                             {"d_model", 4098},
                                                             {"n_heads", "32"},
                                                             {"embedding_size", 126463}};
  for (const auto& [key, value] : refused) {
    EXPECT_THAT(checkpoint_error([&, &k = key, &v = value] {
                  parse_llada(with({{k, v}}));
                }),
                AllOf(HasSubstr("/m/config.json: key \"" + std::string(key) + "\": expected"),
                      HasSubstr("HINT: compare config.json with the published one")));
  }
}

}  // namespace
}  // namespace blockscope
