// config.json of DFlash drafts, in z-lab's and in speculators' layout. What is refused by the whole
// command: tests/cli/test_draft.py.
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

TEST(DraftConfig, DefaultLayersNeedATargetThatHasThem) {
  EXPECT_THAT(checkpoint_error([] { parse_draft(zlab_json(3, 2)); }),
              HasSubstr("target_layer_ids"));
  json config = zlab_json(3, 9);
  config.erase("num_target_layers");
  EXPECT_THAT(checkpoint_error([&] { parse_draft(config); }), HasSubstr("num_target_layers"));
}

}  // namespace
}  // namespace blockscope
