// config.json: the values, where each came from, and every malformed file refused by key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "probe/checkpoint/model_config.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using testing::ElementsAre;
using testing::HasSubstr;

json sdar_json() {
  return json::parse(R"({"architectures": ["SDARForCausalLM"], "model_type": "sdar",
    "num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    "rope_scaling": null, "tie_word_embeddings": false, "attention_bias": false,
    "hidden_act": "silu", "use_sliding_window": false, "sliding_window": null,
    "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151643,
    "mask_token_id": 151669, "block_size": 4})");
}

ModelConfig parse(const json& config, const ModelOverrides& overrides = {}) {
  return parse_model_config({.folder = "/m", .config = config.dump()}, overrides);
}

json with(const std::string& key, const json& value, json config = sdar_json()) {
  config[key] = value;
  return config;
}

json without(const std::string& key) {
  json config = sdar_json();
  config.erase(key);
  return config;
}

std::string source_of(const ModelConfig& config, const std::string& key) {
  return json::parse(resolved_json(config)).at(key).at("source").get<std::string>();
}

TEST(ModelConfig, ReadsSdarAndSaysWhereEachValueCameFrom) {
  const ModelConfig config = parse(sdar_json());
  EXPECT_EQ(config.model_type, "sdar");
  EXPECT_EQ(config.num_layers, 36);
  EXPECT_EQ(config.num_heads, 32);
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.attention_causal);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_THAT(config.stop_token_ids, ElementsAre(151643));
  EXPECT_EQ(require_mask_token_id(config), 151669);
  EXPECT_EQ(require_block_length(config), 4);
  EXPECT_EQ(source_of(config, "mask_token_id"), "config.json:mask_token_id");
  EXPECT_EQ(source_of(config, "block_length"), "config.json:block_size");
  EXPECT_EQ(source_of(config, "num_layers"), "config.json:num_hidden_layers");
  EXPECT_EQ(source_of(config, "qk_norm"), "architecture table");
  EXPECT_THAT(resolved_table(config), HasSubstr("config.json:mask_token_id"));
  EXPECT_TRUE(config.warnings.empty());
}

TEST(ModelConfig, AbsentMaskAndBlockComeFromTheTableOnlyIfTheVocabularyHoldsTheId) {
  json config = without("mask_token_id");
  config.erase("block_size");
  EXPECT_EQ(require_mask_token_id(parse(config)), 151669);
  EXPECT_EQ(source_of(parse(config), "mask_token_id"), "architecture table");
  EXPECT_EQ(require_block_length(parse(config)), 4);
  config["vocab_size"] = 151669;
  const ModelConfig small = parse(config);
  EXPECT_FALSE(small.mask_token_id.has_value());
  EXPECT_EQ(source_of(small, "mask_token_id"), "not resolved");
  const std::string error = checkpoint_error([&] { require_mask_token_id(small); });
  EXPECT_THAT(error, HasSubstr("/m/config.json: "));
  EXPECT_THAT(error, HasSubstr("HINT: pass --mask-token-id"));
}

TEST(ModelConfig, TheCommandLineWinsAndWhatItOverrodeIsRecorded) {
  const ModelConfig config = parse(sdar_json(), {.mask_token_id = 7, .block_length = 32});
  EXPECT_EQ(require_mask_token_id(config), 7);
  EXPECT_EQ(require_block_length(config), 32);
  EXPECT_EQ(source_of(config, "block_length"), "command line --block-length");
  EXPECT_THAT(config.warnings,
              ElementsAre(HasSubstr("overrides 151669"), HasSubstr("overrides 4")));
}

TEST(ModelConfig, TheMaskIdIsReadFromEveryTokenizerFile) {
  const std::vector<std::pair<std::string, std::optional<std::string> ConfigTexts::*>> files = {
      {R"({"<|MASK|>": 99})", &ConfigTexts::added_tokens},
      {R"({"added_tokens_decoder": {"5": {"content": "x"}, "99": {"content": "<|MASK|>"}}})",
       &ConfigTexts::tokenizer_config},
      {R"({"added_tokens": [{"id": 5, "content": "x"}, {"id": 99, "content": "<|MASK|>"}],
           "model": {"vocab": {"a": 0}}})",
       &ConfigTexts::tokenizer},
      {R"({"mask_id": 99})", &ConfigTexts::dlm_config},
      {R"({"mask_token_id": 99})", &ConfigTexts::block_diffusion}};
  for (const auto& [text, member] : files) {
    SCOPED_TRACE(text);
    ConfigTexts texts{.config = without("mask_token_id").dump()};
    texts.*member = text;
    EXPECT_EQ(require_mask_token_id(parse_model_config(texts)), 99);
    // The same file with a config.json that says something else is a contradiction, not a choice.
    texts.config = sdar_json().dump();
    const std::string error = checkpoint_error([&] { parse_model_config(texts); });
    EXPECT_THAT(error, HasSubstr("contradictory"));
    EXPECT_THAT(error, HasSubstr("config.json:mask_token_id says 151669"));
    EXPECT_EQ(require_mask_token_id(parse_model_config(texts, {.mask_token_id = 99})), 99);
    texts.*member = text.substr(0, text.size() - 1);
    EXPECT_THROW(parse_model_config(texts), CheckpointError) << "a cut-off file";
  }
}

TEST(ModelConfig, TwoBlockLengthsAreAContradictionUnlessTheFlagDecides) {
  const json config = with("block_length", 8);
  EXPECT_THAT(checkpoint_error([&] { parse(config); }),
              HasSubstr("HINT: decide with --block-length"));
  EXPECT_EQ(require_block_length(parse(config, {.block_length = 8})), 8);
}

TEST(ModelConfig, PlainQwen3IsAutoregressiveUnlessBothFlagsAreGiven) {
  json config = with("model_type", "qwen3", with("architectures", {"Qwen3ForCausalLM"}));
  EXPECT_TRUE(parse(config).attention_causal);
  EXPECT_FALSE(parse(config).mask_token_id.has_value()) << "never from the file";
  const ModelConfig masked = parse(config, {.mask_token_id = 3, .block_length = 16});
  EXPECT_FALSE(masked.attention_causal);
  EXPECT_EQ(require_block_length(masked), 16);
  EXPECT_THROW(parse(config, {.block_length = 16}), UsageError);
}

TEST(ModelConfig, StopIdsPreferGenerationConfigAndLieInTheVocabulary) {
  ConfigTexts texts{.config = sdar_json().dump()};
  texts.generation_config = R"({"eos_token_id": [151645, 151643, 151645]})";
  EXPECT_THAT(parse_model_config(texts).stop_token_ids, ElementsAre(151645, 151643));
  texts.generation_config = R"({"temperature": 1})";
  EXPECT_THAT(parse_model_config(texts).stop_token_ids, ElementsAre(151643));
  for (const json& ids : {json("x"), json(-7), json(151936), json({151643, 999999}), json(1.5)}) {
    texts.generation_config = json({{"eos_token_id", ids}}).dump();
    EXPECT_THAT(checkpoint_error([&] { parse_model_config(texts); }),
                HasSubstr("generation_config.json: key \"eos_token_id\": expected an id from 0 to "
                          "151935 or a list of them"));
    EXPECT_THAT(checkpoint_error([&] { parse(with("eos_token_id", ids)); }),
                HasSubstr("config.json: key \"eos_token_id\""));
  }
  // Whichever file decides.
  texts = {.config = with("eos_token_id", -7).dump()};
  texts.generation_config = R"({"eos_token_id": 151645})";
  EXPECT_THROW(parse_model_config(texts), CheckpointError);
  const ModelConfig odd = parse(with("pad_token_id", -1));
  EXPECT_THAT(odd.warnings, ElementsAre(HasSubstr("pad_token_id = -1 is outside")));
}

TEST(ModelConfig, KnownAndUnknownFamiliesAreRefusedWithTheReason) {
  const json stacked = {{"model_type", "llada2_moe_veomni"}};
  EXPECT_THAT(checkpoint_error([&] { parse(stacked); }), HasSubstr("known but not supported"));
  const std::string unknown = checkpoint_error([] { parse(with("model_type", "gpt2")); });
  EXPECT_THAT(unknown,
              HasSubstr("\"sdar\" (SDARForCausalLM), \"sdar_moe\" (SDARMoeForCausalLM), \"qwen2\" "
                        "(Qwen2ForCausalLM), \"qwen3\" (Qwen3ForCausalLM)"));
  EXPECT_THAT(unknown, HasSubstr("\"gpt2\""));
  EXPECT_THAT(checkpoint_error([] { parse(with("architectures", {"Qwen3ForCausalLM"})); }),
              HasSubstr("key \"architectures\""));
  EXPECT_NO_THROW(parse(without("model_type")));
  EXPECT_NO_THROW(parse(without("architectures")));
}

TEST(ModelConfig, EveryRequiredKeyIsNamedWhenItIsMissingOrOfTheWrongType) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size",
                          "num_attention_heads", "num_key_value_heads", "vocab_size",
                          "max_position_embeddings", "rms_norm_eps", "rope_theta"}) {
    const std::string named = "/m/config.json: key \"" + std::string(key) + "\": expected";
    EXPECT_THAT(checkpoint_error([&] { parse(without(key)); }), HasSubstr(named));
    for (const json& value : {json("4"), json::array({4}), json(true), json::object(), json(-1),
                              json(std::uint64_t{1} << 63), json(1e300)}) {
      EXPECT_THAT(checkpoint_error([&] { parse(with(key, value)); }), HasSubstr(named));
    }
  }
  EXPECT_THAT(checkpoint_error([] { parse(with("hidden_size", 0)); }), HasSubstr("got 0"));
  EXPECT_THAT(checkpoint_error([] { parse(with("hidden_size", 4.5)); }), HasSubstr("got 4.5"));
}

TEST(ModelConfig, ShapesThatContradictEachOtherAreRefused) {
  EXPECT_THAT(checkpoint_error([] { parse(with("num_key_value_heads", 5)); }),
              HasSubstr("divisor of num_attention_heads (32)"));
  EXPECT_THAT(checkpoint_error([] { parse(with("head_dim", 127)); }), HasSubstr("even"));
  EXPECT_THAT(checkpoint_error([] { parse(with("mask_token_id", 151936)); }),
              HasSubstr("expected 0 to 151935, got 151936"));
  EXPECT_THAT(checkpoint_error([] { parse(with("block_size", 32769)); }), HasSubstr("got 32769"));
  EXPECT_THAT(checkpoint_error([] { parse(with("block_size", 0)); }), HasSubstr("block_size"));
  EXPECT_EQ(parse(with("num_key_value_heads", nullptr)).num_kv_heads, 32);
  EXPECT_EQ(parse(without("head_dim")).head_dim, 128);
}

TEST(ModelConfig, Qwen2HasBiasesOnItsInputsAndNoHeadDim) {
  json config = with("model_type", "qwen2");
  config["architectures"] = {"Qwen2ForCausalLM"};
  config.erase("head_dim");
  const ModelConfig parsed = parse(config);
  EXPECT_TRUE(parsed.attention_bias);
  EXPECT_FALSE(parsed.attention_output_bias);
  EXPECT_FALSE(parsed.qk_norm);
  EXPECT_EQ(parsed.head_dim, parsed.hidden_size / parsed.num_heads);
  config["hidden_size"] = parsed.hidden_size + 2;
  EXPECT_THAT(checkpoint_error([&] { parse(config); }), HasSubstr("head_dim"));
}

json with_experts() {
  json config = with("model_type", "sdar_moe");
  config["architectures"] = {"SDARMoeForCausalLM"};
  config.update({{"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 96},
                 {"norm_topk_prob", true},
                 {"decoder_sparse_step", 2},
                 {"mlp_only_layers", {3}}});
  return config;
}

TEST(ModelConfig, ExpertsAreReadWithTheLayersThatHaveThem) {
  const ModelConfig config = parse(with_experts());
  ASSERT_TRUE(config.moe.has_value());
  EXPECT_EQ(config.moe->num_experts, 8);
  EXPECT_EQ(config.moe->experts_per_token, 2);
  EXPECT_EQ(config.moe->intermediate_size, 96);
  EXPECT_TRUE(config.moe->normalise);
  for (std::size_t layer = 0; layer < config.moe->sparse.size(); ++layer) {
    EXPECT_EQ(config.moe->sparse[layer], layer % 2 == 1 && layer != 3) << layer;
  }
  EXPECT_EQ(config.mask_token_id->value, 151669);
  json none = with_experts();
  none["num_experts"] = 0;
  EXPECT_FALSE(parse(none).moe.has_value());
}

TEST(ModelConfig, ExpertsThatMakeNoSenseAreRefusedByKey) {
  const std::vector<std::pair<std::string, json>> keys = {
      {"num_local_experts", 7},   {"num_experts_per_tok", 9},   {"num_experts_per_tok", 0},
      {"num_experts", -1},        {"num_experts", nullptr},     {"moe_intermediate_size", 0},
      {"decoder_sparse_step", 0}, {"mlp_only_layers", {99999}}, {"mlp_only_layers", 3},
      {"norm_topk_prob", 1}};
  for (const auto& [key, value] : keys) {
    json config = with_experts();
    config[key] = value;
    EXPECT_THAT(checkpoint_error([&] { parse(config); }),
                HasSubstr(key == "num_local_experts" ? "num_experts" : key))
        << value.dump();
  }
}

TEST(ModelConfig, KeysThatWouldChangeTheNumbersAreRefused) {
  const std::vector<std::pair<std::string, json>> keys = {
      {"use_sliding_window", true},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"hidden_act", "gelu"},
      {"mlp_bias", true},
      {"quantization_config", {{"bits", 4}}},
      {"num_experts", 8},
      {"partial_rotary_factor", 0.5},
      {"torch_dtype", "float8_e4m3fn"},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 2}}},
      {"rope_scaling", {{"rope_type", "linear"}}},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"beta_fast", 3}}},
      {"rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}}},
      {"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {1, 2}}}},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2}}},
      {"rope_scaling", "yarn"},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5.0}}}};
  for (const auto& [key, value] : keys) {
    SCOPED_TRACE(key + " = " + value.dump());
    EXPECT_THAT(checkpoint_error([&] { parse(with(key, value)); }), HasSubstr("/m/config.json"));
  }
}

TEST(ModelConfig, TextThatIsNotOneJsonObjectIsRefusedWithTheFile) {
  for (const char* text :
       {"", "{", "[]", "null", "{} {}", "{\"a\": NaN}", "{\"a\": 1e999}", "\xff"}) {
    EXPECT_THAT(checkpoint_error([&] { parse_model_config({.folder = "/m", .config = text}); }),
                HasSubstr("/m/config.json"));
  }
  const std::string deep(200'000, '[');
  EXPECT_THROW(parse_model_config({.config = deep}), CheckpointError);
}

TEST(ModelConfig, AFolderWithoutConfigIsNamed) {
  const test::TempFolder folder;
  EXPECT_THAT(checkpoint_error([&] { load_model_config(folder.path()); }),
              HasSubstr(folder.path().string() + ": expected config.json"));
}

}  // namespace
}  // namespace blockscope
