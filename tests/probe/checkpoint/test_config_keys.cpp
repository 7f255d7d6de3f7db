// Every key of a config.json is read, known to change nothing, or refused by name, in all families.
// The key sets are those of published_keys files; the ones marked "transformers 5" are what its
// save_pretrained writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "probe/checkpoint/model_config.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using testing::AllOf;
using testing::HasSubstr;

json joined(json first, const json& second) {
  first.update(second);
  return first;
}

const json kQwen = json::parse(R"({"attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 32768, "max_window_layers": 28,
    "num_attention_heads": 16, "num_hidden_layers": 4, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 152064})");
const json kQwen3 =
    joined(kQwen, {{"attention_bias", false}, {"head_dim", 128}, {"rope_scaling", nullptr}});
const json kExperts = json::parse(R"({"decoder_sparse_step": 1, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_experts": 128,
    "num_experts_per_tok": 8, "output_router_logits": false, "router_aux_loss_coef": 0.001})");
const json kSdar = joined(kQwen3, json::parse(R"({"auto_map": {"AutoConfig": "c.C"},
    "attn_implementation": "flex_attention", "debug": false, "block_size": 4,
    "mask_token_id": 151669, "ep_size": 1, "fuse_cross_entropy": true, "micro_forward": false,
    "skip_checkpoint": false, "use_deepep": false, "tie_word_embeddings": false})"));
const json kFullAttention = {"full_attention", "full_attention", "full_attention",
                             "full_attention"};
// transformers 5
const json kSaved = json::parse(R"({"dtype": "bfloat16", "torch_dtype": null, "rope_theta": null,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "pad_token_id": null})");

/// name -> config.json
const std::map<std::string, json>& published_keys() {
  static const std::map<std::string, json> configs = {
      {"SDAR-8B-Chat, TraDo",
       joined(kSdar, {{"model_type", "sdar"}, {"architectures", {"SDARForCausalLM"}}})},
      {"SDAR-30B-A3B-Chat",
       joined(joined(kSdar, kExperts),
              {{"model_type", "sdar_moe"}, {"architectures", {"SDARMoeForCausalLM"}}})},
      {"Qwen2.5", joined(kQwen, {{"model_type", "qwen2"},
                                 {"architectures", {"Qwen2ForCausalLM"}},
                                 {"sliding_window", 131072},
                                 {"use_mrope", false}})},
      {"Qwen3", joined(kQwen3, {{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}})},
      {"Qwen3, transformers 5",
       joined(joined(kQwen3, kSaved), {{"model_type", "qwen3"},
                                       {"architectures", {"Qwen3ForCausalLM"}},
                                       {"layer_types", kFullAttention}})},
      {"Qwen3-Coder-30B-A3B",
       joined(joined(kQwen3, kExperts), {{"model_type", "qwen3_moe"},
                                         {"architectures", {"Qwen3MoeForCausalLM"}},
                                         {"qkv_bias", false},
                                         {"use_qk_norm", true},
                                         {"shared_expert_intermediate_size", 0}})},
      {"Qwen3-30B-A3B, transformers 5",
       joined(joined(joined(kQwen3, kExperts), kSaved), {{"model_type", "qwen3_moe"},
                                                         {"architectures", {"Qwen3MoeForCausalLM"}},
                                                         {"num_experts", nullptr},
                                                         {"num_local_experts", 128}})},
      {"Dream-v0-Instruct-7B", joined(kQwen, {{"model_type", "Dream"},
                                              {"architectures", {"DreamModel"}},
                                              {"auto_map", {{"AutoModel", "m.DreamModel"}}},
                                              {"mask_token_id", 151666},
                                              {"pad_token_id", 151643},
                                              {"rope_scaling", nullptr},
                                              {"use_mrope", false}})},
      {"Fast_dLLM_v2_7B", joined(kQwen, {{"model_type", "Fast_dLLM_Qwen"},
                                         {"architectures", {"Fast_dLLM_QwenForCausalLM"}},
                                         {"auto_map", {{"AutoConfig", "configuration.C"}}},
                                         {"bd_size", 32},
                                         {"layer_types", kFullAttention},
                                         {"rope_scaling", nullptr}})},
      {"LLaDA-8B-Instruct, LLaDA-1.5", json::parse(R"({"activation_type": "silu", "alibi": false,
          "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"], "attention_dropout": 0.0,
          "attention_layer_norm": false, "attention_layer_norm_with_affine": true,
          "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig"},
          "bias_for_layer_norm": false, "block_group_size": 1, "block_type": "llama",
          "d_model": 4096, "embedding_dropout": 0.0, "embedding_size": 126464,
          "eos_token_id": 126081, "flash_attention": false, "include_bias": false,
          "include_qkv_bias": false, "init_cutoff_factor": null, "init_device": "meta",
          "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": false,
          "layer_norm_type": "rms", "layer_norm_with_affine": true, "mask_token_id": 126336,
          "max_sequence_length": 4096, "mlp_hidden_size": 12288, "mlp_ratio": 4,
          "model_type": "llada", "multi_query_attention": null, "n_heads": 32, "n_kv_heads": 32,
          "n_layers": 32, "pad_token_id": 126081, "precision": "amp_bf16", "residual_dropout": 0.0,
          "rms_norm_eps": 1e-05, "rope": true, "rope_full_precision": true,
          "rope_theta": 500000.0, "scale_logits": false, "transformers_version": "4.46.3",
          "use_cache": false, "vocab_size": 126464, "weight_tying": false})")},
      {"LLaDA2.0-mini, LLaDA2.1-mini", json::parse(R"({"architectures": ["LLaDA2MoeModelLM"],
          "attention_dropout": 0.0, "auto_map": {"AutoConfig": "c.C"}, "dtype": "bfloat16",
          "embedding_dropout": 0.0, "eos_token_id": 156892, "first_k_dense_replace": 1,
          "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
          "intermediate_size": 5120, "max_position_embeddings": 32768, "max_window_layers": 20,
          "model_type": "llada2_moe", "moe_intermediate_size": 512,
          "moe_router_enable_expert_bias": true, "moe_shared_expert_intermediate_size": 512,
          "mtp_loss_scaling_factor": 0, "n_group": 8, "norm_head": false, "norm_softmax": false,
          "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 256,
          "num_experts_per_tok": 8, "num_hidden_layers": 20, "num_key_value_heads": 4,
          "num_nextn_predict_layers": 0, "num_shared_experts": 1, "output_dropout": 0.0,
          "output_router_logits": false, "pad_token_id": 156892, "partial_rotary_factor": 0.5,
          "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 600000, "rotary_dim": 64,
          "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function": "sigmoid",
          "tie_word_embeddings": false, "topk_group": 4, "transformers_version": "4.57.1",
          "use_bias": false, "use_cache": true, "use_qkv_bias": false, "use_rmsnorm": true,
          "use_sliding_window": false, "using_split_qkv_in_self_attention": false,
          "vocab_size": 157184})")},
      {"Qwen3-8B-DFlash-b16",
       joined(kQwen3, {{"model_type", "qwen3"},
                       {"architectures", {"DFlashDraftModel"}},
                       {"auto_map", {{"AutoModel", "dflash.DFlashDraftModel"}}},
                       {"block_size", 16},
                       {"dflash_config",
                        {{"mask_token_id", 151669}, {"target_layer_ids", {1, 9, 17, 25, 33}}}},
                       {"layer_types", kFullAttention},
                       {"num_target_layers", 36}})},
      {"a draft of speculators",
       {{"architectures", {"DFlashSpeculator"}},
        {"aux_hidden_state_layer_ids", {2, 18, 33}},
        {"block_size", 8},
        {"draft_vocab_size", 32000},
        {"dtype", "bfloat16"},
        {"has_no_defaults_at_init", false},
        {"mask_token_id", 151669},
        {"max_anchors", 3072},
        {"model_type", "speculator_model"},
        {"sample_from_anchor", false},
        {"sliding_window_non_causal", false},
        {"speculators_config", {{"algorithm", "dflash"}, {"verifier", {{"name_or_path", "t"}}}}},
        {"speculators_model_type", "dflash"},
        {"speculators_version", "0.5.0"},
        {"target_hidden_size", 2048},
        {"tie_word_embeddings", false},
        {"transformer_layer_config",
         joined(kQwen3, {{"model_type", "qwen3"}, {"layer_types", kFullAttention}})},
        {"transformers_version", "4.57.1"}}},
  };
  return configs;
}

void parse_keys(const json& config) {
  parse_model_config({.folder = "/m", .config = config.dump()});
}

TEST(ConfigKeys, ThePublishedKeySetsAreTaken) {
  for (const auto& [name, config] : published_keys()) EXPECT_NO_THROW(parse_keys(config)) << name;
}

TEST(ConfigKeys, AKeyThatNobodyReadsIsRefusedByNameInEveryFamily) {
  const std::vector<std::pair<std::string, json>> keys = {{"expert_capacity", 48},
                                                          {"capacity_factor", 1.25},
                                                          {"drop_tokens", true},
                                                          {"token_drop_policy", "probs"},
                                                          {"expert_choice", true},
                                                          {"attention_sinks", true},
                                                          {"attn_logit_softcapping", 50.0},
                                                          {"final_logit_softcapping", 30.0},
                                                          {"embedding_multiplier", 12.0},
                                                          {"residual_multiplier", 0.22},
                                                          {"logits_scaling", 8.0},
                                                          {"query_pre_attn_scalar", 256},
                                                          {"use_mrope", true},
                                                          {"use_relay", true},
                                                          {"is_encoder_decoder", true},
                                                          {"pretraining_tp", 2},
                                                          {"num_nextn_predict_layers", 1},
                                                          {"quantization", {{"bits", 4}}},
                                                          {"quantization_config", {{"bits", 4}}},
                                                          {"_sliding_window_pattern", 6},
                                                          {"a_key_of_tomorrow", 0}};
  for (const auto& [name, config] : published_keys()) {
    for (const auto& [key, value] : keys) {
      SCOPED_TRACE(name + ": " + key);
      // z-lab's drafts read it (test_draft_config.cpp).
      if (key == "final_logit_softcapping" && config.contains("dflash_config")) continue;
      EXPECT_THAT(checkpoint_error([&] {
                    parse_keys(joined(config, {{key, value}}));
                  }),
                  AllOf(HasSubstr("/m/config.json"), HasSubstr("key \"" + key + "\""),
                        HasSubstr("HINT: ")));
    }
  }
}

TEST(ConfigKeys, NothingAndTheValueThatChangesNothingAreTaken) {
  const json neutral = {{"expert_capacity", nullptr},   {"final_logit_softcapping", nullptr},
                        {"a_key_of_tomorrow", nullptr}, {"attention_sinks", false},
                        {"embedding_multiplier", 1.0},  {"logits_scaling", 1},
                        {"drop_tokens", false},         {"pruned_heads", json::object()},
                        {"chunk_size_feed_forward", 0}, {"id2label", {{"0", "LABEL_0"}}},
                        {"_name_or_path", "org/name"},  {"repetition_penalty", 1.05}};
  for (const auto& [name, config] : published_keys()) {
    EXPECT_NO_THROW(parse_keys(joined(config, neutral))) << name;
  }
}

TEST(ConfigKeys, AllUnknownKeysAreNamedAtOnce) {
  const json config = joined(published_keys().at("Qwen3"), {{"x_first", 1}, {"x_second", 2}});
  EXPECT_THAT(checkpoint_error([&] { parse_keys(config); }),
              AllOf(HasSubstr("key \"x_first\": expected no such key"), HasSubstr("got 1"),
                    HasSubstr("(also x_second)")));
}

TEST(ConfigKeys, LayerTypesAreCounted) {
  for (const std::size_t count : {0u, 3u, 5u}) {
    const json types = std::vector<std::string>(count, "full_attention");
    EXPECT_THAT(checkpoint_error([&] {
                  parse_keys(joined(published_keys().at("Qwen3"), {{"layer_types", types}}));
                }),
                HasSubstr("\"full_attention\" for every layer (4)"));
  }
}

TEST(ConfigKeys, KeysOfInnerObjectsFollowTheRule) {
  const json zlab = published_keys().at("Qwen3-8B-DFlash-b16");
  for (const auto& [key, value] : std::map<std::string, json>{{"projector_type", "domino"},
                                                              {"sample_from_anchor", true},
                                                              {"attention_mode", "mla"},
                                                              {"selector_rank", 256},
                                                              {"temperature", 0.5}}) {
    json config = zlab;
    config["dflash_config"][key] = value;
    EXPECT_THAT(checkpoint_error([&] { parse_keys(config); }),
                HasSubstr("config.json:dflash_config: key \"" + key + "\""));
  }
  json outer = published_keys().at("a draft of speculators");
  outer["layer_types"] = {"full_attention", "full_attention", "full_attention",
                          "sliding_attention"};
  EXPECT_THAT(checkpoint_error([&] { parse_keys(outer); }), HasSubstr("key \"layer_types\""));
  json inner = published_keys().at("a draft of speculators");
  inner["transformer_layer_config"]["logits_scaling"] = 2;
  EXPECT_THAT(checkpoint_error([&] { parse_keys(inner); }),
              HasSubstr("transformer_layer_config: key \"logits_scaling\""));
}

TEST(ConfigKeys, DraftsOfOtherKindsAreRefused) {
  const json zlab = published_keys().at("Qwen3-8B-DFlash-b16");
  const json own = published_keys().at("a draft of speculators");
  const auto refused = [](json config, const char* key, const json& value) {
    config[key] = value;
    EXPECT_THAT(checkpoint_error([&] { parse_keys(config); }), HasSubstr(std::string(key) + "\""));
  };
  for (const json& config : {zlab, own}) {
    refused(config, "architectures", {"LlamaForCausalLMEagle3"});
    refused(config, "model_type", "llama");
    refused(config, "block_size", 1);
  }
  refused(own, "aux_hidden_state_layer_ids", {2, 2, 33});
  refused(own, "target_hidden_size", 4096);
  refused(own, "speculators_model_type", "eagle3");
  json twice = zlab;
  twice["dflash_config"]["target_layer_ids"] = {1, 9, 17, 9, 33};
  EXPECT_THAT(checkpoint_error([&] { parse_keys(twice); }), HasSubstr("every layer once"));
  json two_blocks = zlab;
  two_blocks["dflash_config"]["block_size"] = 8;
  EXPECT_THAT(checkpoint_error([&] { parse_keys(two_blocks); }), HasSubstr("16 as outside of it"));
  json llama = own;
  llama["transformer_layer_config"]["model_type"] = "llama";
  EXPECT_THAT(checkpoint_error([&] { parse_keys(llama); }), HasSubstr("\"qwen3\", got \"llama\""));
}

}  // namespace
}  // namespace blockscope
