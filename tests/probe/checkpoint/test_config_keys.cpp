// Every key of a config.json is read, known to change nothing, or refused by name, in all families.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "probe/checkpoint/model_config.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"
#include "tests/probe/checkpoint/published_keys.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using test::joined;
using test::published_keys;
using testing::AllOf;
using testing::HasSubstr;

void parse_keys(const json& config) {
  parse_model_config({.folder = "/m", .config = config.dump()});
}

TEST(ConfigKeys, ThePublishedKeySetsAreTaken) {
  for (const auto& [name, config] : published_keys()) EXPECT_NO_THROW(parse_keys(config)) << name;
}

TEST(ConfigKeys, OnlyLlamaHasAThetaOfItsOwn) {
  const ModelConfig config =
      parse_model_config({.config = published_keys().at("Llama-2-7b").dump()});
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_THAT(checkpoint_error([&] {
                parse_keys(joined(published_keys().at("Qwen3"), {{"rope_theta", nullptr}}));
              }),
              HasSubstr("key \"rope_theta\": expected a number"));
}

// LLaDA2 reads `expert_capacity`, together with a block_size that these files lack.
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

TEST(ConfigKeys, AClassNameTellsStableDiffCoderFromLlama) {
  const json config = published_keys().at("Stable-DiffCoder-8B-Instruct");
  const ModelConfig parsed = parse_model_config({.config = config.dump()});
  EXPECT_EQ(parsed.model_type, "stable_diffcoder");
  EXPECT_FALSE(parsed.attention_causal);
  EXPECT_EQ(require_mask_token_id(parsed), 5);
  EXPECT_EQ(require_block_length(parsed), 4);
  EXPECT_THAT(checkpoint_error([&] {
                parse_keys(joined(config, {{"model_type", "qwen2"}}));
              }),
              HasSubstr("key \"model_type\": expected \"llama\", got \"qwen2\""));
}

TEST(ConfigKeys, AModelOfDllmNeedsItsBlockLength) {
  const json config = published_keys().at("Qwen3-0.6B-diffusion-bd3lm, TIDE");
  const ModelConfig parsed = parse_model_config({.config = config.dump()});
  EXPECT_EQ(require_mask_token_id(parsed), 151669);
  EXPECT_THAT(checkpoint_error([&] { require_block_length(parsed); }),
              HasSubstr("HINT: pass --block-length"));
}

TEST(ConfigKeys, NemotronRunsTokenByToken) {
  const json config = published_keys().at("Nemotron-Labs-Diffusion-3B-Base");
  const ModelConfig parsed = parse_model_config({.config = config.dump()});
  EXPECT_TRUE(parsed.attention_causal);
  EXPECT_EQ(parsed.rope.query_scaling_beta, 0.1);
  EXPECT_THROW(
      parse_model_config({.config = config.dump()}, {.mask_token_id = 100, .block_length = 32}),
      UsageError);
  for (const auto& [key, value] : std::map<std::string, json>{{"attention_bias", true},
                                                              {"mlp_bias", true},
                                                              {"sliding_window", 4096},
                                                              {"tie_word_embeddings", true},
                                                              {"dlm_paradigm", "block_diff"}}) {
    EXPECT_THAT(checkpoint_error([&] {
                  parse_keys(joined(config, {{key, value}}));
                }),
                HasSubstr("key \"" + key + "\": expected"));
  }
  const auto with_rope = [&](const json& keys) {
    json changed = config;
    changed["rope_parameters"].update(keys);
    return changed;
  };
  EXPECT_NO_THROW(parse_keys(with_rope({{"max_position_embeddings", 4096}})));
  EXPECT_THAT(checkpoint_error([&] {
                parse_keys(with_rope({{"max_position_embeddings", 1}}));
              }),
              HasSubstr("4096 as outside of it"));
  EXPECT_THAT(checkpoint_error([&] {
                parse_keys(with_rope({{"llama_4_scaling_beta", -1.0}}));
              }),
              HasSubstr("llama_4_scaling_beta"));
  EXPECT_THAT(checkpoint_error([&] {
                parse_keys(with_rope({{"original_max_position_embeddings", nullptr}}));
              }),
              HasSubstr("original_max_position_embeddings"));
  json qwen = published_keys().at("Qwen3");
  qwen["rope_scaling"] = config["rope_parameters"];
  EXPECT_THAT(checkpoint_error([&] { parse_keys(qwen); }), HasSubstr("llama_4_scaling_beta"));
}

TEST(ConfigKeys, WeDlmIsRefusedWithItsReason) {
  const json config =
      joined(published_keys().at("Qwen3"),
             {{"model_type", "wedlm"}, {"architectures", {"WeDLMForCausalLM"}}, {"qk_norm", true}});
  EXPECT_THAT(checkpoint_error([&] { parse_keys(config); }),
              AllOf(HasSubstr("got \"wedlm\""), HasSubstr("sliding window")));
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
