// config.json of DFlash drafts, in z-lab's and in speculators' layout. What is refused by the whole
// command: tests/cli/test_draft.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/model_config.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using nlohmann::json;
using test::checkpoint_error;
using testing::ElementsAre;
using testing::HasSubstr;

/// Qwen3's keys of a draft.
json shape_json(int layers) {
  return {{"model_type", "qwen3"},          {"hidden_size", 64},
          {"intermediate_size", 96},        {"num_attention_heads", 4},
          {"num_key_value_heads", 2},       {"head_dim", 16},
          {"num_hidden_layers", layers},    {"vocab_size", 100},
          {"rms_norm_eps", 1e-6},           {"rope_theta", 1e6},
          {"max_position_embeddings", 512}, {"hidden_act", "silu"},
          {"tie_word_embeddings", true}};
}

json zlab_json(int layers, int target_layers) {
  json config = shape_json(layers);
  config["architectures"] = {"DFlashDraftModel"};
  config["block_size"] = 16;
  config["num_target_layers"] = target_layers;
  config["dflash_config"] = {{"mask_token_id", 99}};
  return config;
}

ModelConfig parse_draft(const json& config) {
  return parse_model_config({.folder = "/m", .config = config.dump()});
}

TEST(DraftConfig, DefaultTargetLayersAreThoseThatPythonRoundsTo) {
  const json table = json::parse(test::read_text(test::kData / "draft_target_layers.json"));
  size_t compared = 0;
  for (int target = 6; target <= 40; ++target) {
    for (int draft = 1; draft <= 8; ++draft, ++compared) {
      const std::string key = std::to_string(target) + "x" + std::to_string(draft);
      EXPECT_EQ(parse_draft(zlab_json(draft, target)).draft->target_layers,
                table.at(key).get<std::vector<std::int64_t>>())
          << key;
    }
  }
  EXPECT_EQ(compared, table.size());
}

TEST(DraftConfig, HalvesAreRoundedToTheEvenLayer) {
  // 1 + 5 / 2 = 3.5 and 1 + 3 / 2 = 2.5
  EXPECT_THAT(parse_draft(zlab_json(3, 9)).draft->target_layers, ElementsAre(1, 4, 6));
  EXPECT_THAT(parse_draft(zlab_json(3, 7)).draft->target_layers, ElementsAre(1, 2, 4));
}

TEST(DraftConfig, ReadsTheLayoutOfZLab) {
  json config = zlab_json(2, 8);
  config["dflash_config"]["target_layer_ids"] = {6, 0, 7};
  const ModelConfig model = parse_draft(config);
  ASSERT_TRUE(model.draft.has_value());
  EXPECT_EQ(model.model_type, "dflash");
  EXPECT_THAT(model.draft->target_layers, ElementsAre(6, 0, 7));
  EXPECT_EQ(model.draft->block_size, 16);
  EXPECT_EQ(model.draft->mask_token_id, 99);
  EXPECT_FALSE(model.draft->own_vocabulary);
  EXPECT_EQ(model.block_length->value, 16);
  config.erase("block_size");
  config["dflash_config"]["block_size"] = 4;
  EXPECT_EQ(parse_draft(config).draft->block_size, 4);
}

TEST(DraftConfig, ReadsTheLayoutOfSpeculators) {
  const json config = {{"speculators_model_type", "dflash"},
                       {"block_size", 8},
                       {"mask_token_id", 98},
                       {"draft_vocab_size", 50},
                       {"aux_hidden_state_layer_ids", {2, 5}},
                       {"transformer_layer_config", shape_json(3)}};
  const ModelConfig model = parse_draft(config);
  ASSERT_TRUE(model.draft.has_value());
  // Hidden state 2 is the output of layer 1.
  EXPECT_THAT(model.draft->target_layers, ElementsAre(1, 4));
  EXPECT_TRUE(model.draft->own_vocabulary);
  EXPECT_EQ(model.draft->draft_vocab_size, 50);
  EXPECT_TRUE(model.draft->maps_vocabulary(model.vocab_size));
  EXPECT_FALSE(model.tie_word_embeddings);
  EXPECT_EQ(model.num_layers, 3);
}

/// A published config: tests/fixtures/dflash2-config.json of z-lab/dflash, with smaller sizes.
json second_json() {
  json config = shape_json(5);
  config["architectures"] = {"DFlash2DraftModel"};
  config["num_target_layers"] = 52;
  config["is_causal"] = false;
  config["use_sliding_window"] = true;
  config["sliding_window"] = 2048;
  config["max_window_layers"] = 5;
  config["layer_types"] = std::vector<std::string>(5, "sliding_attention");
  config["dflash_config"] = {{"block_size", 16},
                             {"conv_group_size", 16},
                             {"conv_kernel_size", 2},
                             {"final_logit_softcapping", 20.0},
                             {"mask_token_id", 98},
                             {"output_multiplier", 0.19611613513818404},
                             {"selector_rank", 256},
                             {"selector_top_k", 16},
                             {"target_layer_ids", {1, 13, 25, 37, 49}}};
  return config;
}

TEST(DraftConfig, ReadsAPublishedDflash2Draft) {
  const ModelConfig model = parse_draft(second_json());
  const DraftConfig& draft = *model.draft;
  ASSERT_TRUE(draft.second.has_value());
  EXPECT_EQ(draft.second->conv_taps, 2);
  EXPECT_EQ(draft.second->conv_group, 16);
  EXPECT_EQ(draft.second->selector_rank, 256);
  EXPECT_EQ(draft.second->candidates, 16);
  EXPECT_EQ(draft.output_multiplier, 0.19611613513818404);
  EXPECT_EQ(draft.soft_cap, 20.0);
  EXPECT_EQ(draft.embedding_scale, 1.0);
  EXPECT_FALSE(draft.causal(0));
  ASSERT_EQ(model.layer_shapes.size(), 5U);
  EXPECT_EQ(model.layer(4).window, 2048);
  std::vector<std::string> names;
  for (const ExpectedTensor& tensor : expected_tensors(model)) names.push_back(tensor.name);
  for (const char* name :
       {"layers.4.attention_conv.base_kernel", "layers.0.mlp_conv.kernel_projection.weight",
        "candidate_selector.hidden_projection.weight", "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
}

TEST(DraftConfig, KeysOfASecondDraftMayStandOutside) {
  json config = second_json();
  config["selector_rank"] = 8;
  EXPECT_THAT(checkpoint_error([&] { parse_draft(config); }), HasSubstr("8 as outside of it"));
  config["dflash_config"].erase("selector_rank");
  EXPECT_EQ(parse_draft(config).draft->second->selector_rank, 8);
}

TEST(DraftConfig, ADraftIsOneOrTheOther) {
  json config = second_json();
  config["architectures"] = {"DFlashDraftModel"};
  EXPECT_THAT(checkpoint_error([&] { parse_draft(config); }), HasSubstr("DFlash2DraftModel"));
  for (const char* key :
       {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}) {
    json without = second_json();
    without["dflash_config"].erase(key);
    EXPECT_THAT(checkpoint_error([&] { parse_draft(without); }), HasSubstr(key));
  }
  for (const auto& [key, wrong] : {std::pair{"conv_kernel_size", 17},
                                   {"conv_group_size", 7},
                                   {"selector_rank", 0},
                                   {"selector_top_k", 101},
                                   {"output_multiplier", 0},
                                   {"final_logit_softcapping", -1}}) {
    json changed = second_json();
    changed["dflash_config"][key] = wrong;
    EXPECT_THAT(checkpoint_error([&] { parse_draft(changed); }), HasSubstr(key));
  }
  json both = second_json();
  both["speculators_model_type"] = "dflash2";
  EXPECT_THAT(checkpoint_error([&] { parse_draft(both); }), HasSubstr("two layouts"));
}

TEST(DraftConfig, WindowedLayersAreCausalUnlessTheFileSaysOtherwise) {
  json config = second_json();
  config["layer_types"][2] = "full_attention";
  config.erase("is_causal");
  ModelConfig model = parse_draft(config);
  EXPECT_EQ(model.layer(2).window, 0);
  EXPECT_TRUE(model.draft->causal(1));
  EXPECT_FALSE(model.draft->causal(2));
  config["dflash_config"]["causal"] = true;
  model = parse_draft(config);
  EXPECT_TRUE(model.draft->causal(2));
  config["is_causal"] = false;
  EXPECT_FALSE(parse_draft(config).draft->causal(1));
  config["use_sliding_window"] = false;
  EXPECT_THAT(checkpoint_error([&] { parse_draft(config); }), HasSubstr("layer_types"));
  config["use_sliding_window"] = true;
  config["sliding_window"] = 15;
  EXPECT_THAT(checkpoint_error([&] { parse_draft(config); }), HasSubstr("16 positions"));
}

json speculators_json(const std::string& type) {
  return {{"speculators_model_type", type},
          {"architectures", {type == "dflash2" ? "DFlash2DraftModel" : "DFlashDraftModel"}},
          {"block_size", 8},
          {"mask_token_id", 98},
          {"draft_vocab_size", 100},
          {"aux_hidden_state_layer_ids", {2, 5}},
          {"transformer_layer_config", shape_json(3)}};
}

TEST(DraftConfig, SpeculatorsDraftsMaySampleFromTheAnchor) {
  json config = speculators_json("dflash");
  config["sample_from_anchor"] = true;
  const ModelConfig model = parse_draft(config);
  EXPECT_TRUE(model.draft->from_anchor);
  EXPECT_EQ(model.block_length->value, 9);  // the certain token, and one for each row
  EXPECT_EQ(model.logit_shift, 1);
}

TEST(DraftConfig, SpeculatorsHaveASecondKind) {
  json config = speculators_json("dflash2");
  for (const auto& [key, value] : {std::pair{"conv_kernel_size", 2},
                                   {"conv_group_size", 16},
                                   {"selector_rank", 8},
                                   {"selector_top_k", 4}}) {
    config[key] = value;
  }
  EXPECT_EQ(parse_draft(config).draft->second->candidates, 4);
  for (const auto& [key, wrong] : {std::pair<const char*, json>{"sample_from_anchor", true},
                                   {"draft_vocab_size", 50},
                                   {"architectures", {"DFlashDraftModel"}}}) {
    json changed = config;
    changed[key] = wrong;
    EXPECT_THAT(checkpoint_error([&] { parse_draft(changed); }), HasSubstr(key));
  }
}

TEST(DraftConfig, DefaultLayersNeedATargetThatHasThem) {
  EXPECT_THAT(checkpoint_error([] { parse_draft(zlab_json(3, 2)); }),
              HasSubstr("target_layer_ids"));
  json config = zlab_json(3, 9);
  config.erase("num_target_layers");
  EXPECT_THAT(checkpoint_error([&] { parse_draft(config); }), HasSubstr("num_target_layers"));
}

}  // namespace
}  // namespace blockscope
