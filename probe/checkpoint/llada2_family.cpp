// LLaDA2 MoE, block-causal: dFactory `configuration_llada2_moe.py` and `modeling_llada2_moe.py`
// (LLaDA2.0-mini, LLaDA2.0-flash). Mask id, block length and mask token come from `generate` in the
// second file and from the published tokenizer; the published config.json has none of them.
// LLaDA2.2 adds block routing (`LLaDA2MoeGate.block_routing`) and the tokens DELETE and SPLIT.
#include <fmt/format.h>

#include "probe/checkpoint/config_limits.h"
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

constexpr std::int64_t kMaxShared = 1024;
constexpr double kMaxScaling = 1e6;

/// Checks a key that repeats the information of others in some published files.
void require_llada2_number(const JsonObject& file, const char* key, double expected) {
  const auto value = file.optional_number(key, -kMaxScaling, kMaxScaling);
  if (value && *value != expected) file.fail(key, fmt::format("{} or nothing", expected));
}

void refuse_other_llada2(const JsonObject& file) {
  file.require_switch("use_rmsnorm", true);
  file.require_switch("norm_head", false);
  file.require_switch("norm_softmax", false);
  file.require_switch("using_split_qkv_in_self_attention", false);
  file.require_switch("moe_router_enable_expert_bias", true);
  file.require_switch("norm_topk_prob", true,
                      "the official code always normalises, but other engines follow this key");
  file.require_text("score_function", "sigmoid");
  file.require_text("scoring_func", "sigmoid");
  file.require_text("topk_method", "noaux_tc");
  file.require_text("router_dtype", "fp32");
  require_llada2_number(file, "num_nextn_predict_layers", 0.0);
}

/// LLaDA2.2: the block chooses `expert_capacity` experts. Its configuration still names groups,
/// which the official code then ignores.
void read_block_routing(const JsonObject& file, MoeConfig& moe) {
  const auto capacity = file.optional_integer("expert_capacity", 0, moe.num_experts);
  if (!capacity || *capacity == 0) return;
  if (*capacity < moe.experts_per_token) {
    file.fail("expert_capacity",
              fmt::format("num_experts_per_tok {} to num_experts {}, or 0 for no block routing",
                          moe.experts_per_token, moe.num_experts));
  }
  const auto block = file.optional_integer("block_size", 1, kMaxWidth);
  if (!block) {
    file.fail("expert_capacity", "a key block_size, too",
              "the block whose rows choose the experts together");
  }
  moe.expert_capacity = *capacity;
  moe.routing_block = *block;
  moe.num_groups = moe.kept_groups = 1;
}

/// LLaDA2.2's edit tokens: both or none, within the vocabulary.
void read_edit_tokens(const JsonObject& file, ModelConfig& config) {
  const auto id = [&](const char* key) {
    return file.optional_integer(key, 0, config.vocab_size - 1).value_or(-1);
  };
  config.delete_token_id = id("delete_token_id");
  config.split_token_id = id("split_token_id");
  if ((config.delete_token_id < 0) != (config.split_token_id < 0)) {
    file.fail(config.delete_token_id < 0 ? "delete_token_id" : "split_token_id",
              "both delete_token_id and split_token_id, or neither");
  }
  if (config.delete_token_id >= 0 && config.delete_token_id == config.split_token_id) {
    file.fail("split_token_id", "another token than delete_token_id");
  }
}

MoeConfig parse_llada2_experts(const JsonObject& file, std::int64_t num_layers) {
  MoeConfig moe;
  moe.sigmoid = true;
  moe.num_experts = file.integer("num_experts", 1, kMaxExperts);
  require_llada2_number(file, "num_local_experts", static_cast<double>(moe.num_experts));
  moe.intermediate_size = file.integer("moe_intermediate_size", 1, kMaxWidth);
  moe.num_groups = file.integer("n_group", 1, moe.num_experts);
  const std::int64_t group_size = moe.num_experts / moe.num_groups;
  if (moe.num_experts % moe.num_groups != 0 || group_size < 2) {
    file.fail("n_group",
              fmt::format("a divisor of the {} experts that leaves groups of two or more",
                          moe.num_experts),
              "a group's score is the sum of its two best");
  }
  moe.kept_groups = file.integer("topk_group", 1, moe.num_groups);
  moe.experts_per_token = file.integer("num_experts_per_tok", 1, moe.kept_groups * group_size);
  read_block_routing(file, moe);
  moe.normalise = moe.experts_per_token > 1;  // a single expert keeps its score
  moe.scaling = file.number("routed_scaling_factor", 0.0, kMaxScaling);
  require_llada2_number(file, "moe_router_topk_scaling_factor", moe.scaling);
  const std::int64_t shared =
      file.optional_integer("num_shared_experts", 0, kMaxShared).value_or(0);
  moe.shared_size = shared * moe.intermediate_size;
  if (moe.shared_size > kMaxWidth) {
    file.fail("num_shared_experts", fmt::format("a width of at most {}", kMaxWidth));
  }
  require_llada2_number(file, "moe_shared_expert_intermediate_size",
                        static_cast<double>(moe.intermediate_size));
  const std::int64_t dense = file.integer("first_k_dense_replace", 0, kMaxExperts);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) moe.sparse.push_back(layer >= dense);
  return moe;
}

/// Refuses every value that the official code treats differently or ignores, also `norm_topk_prob`
/// false, which it ignores.
void read_llada2_layers(const ConfigFile& file, ModelConfig& config) {
  const JsonObject& keys = file.keys;
  config.tie_word_embeddings = keys.optional_boolean("tie_word_embeddings").value_or(false);
  refuse_other_llada2(keys);
  config.moe = parse_llada2_experts(keys, config.num_layers);
  read_edit_tokens(keys, config);
  config.attention_bias = keys.optional_boolean("use_qkv_bias").value_or(false);
  config.attention_output_bias = keys.optional_boolean("use_bias").value_or(true);
}

void record_llada2(const ConfigFile& file, ModelConfig& config) {
  const MoeConfig& moe = *config.moe;
  add_resolved(config, "expert_scores", "sigmoid", kTableSource);
  if (moe.expert_capacity > 0) {
    add_resolved(config, "expert_capacity", moe.expert_capacity, file.source("expert_capacity"));
    add_resolved(config, "routing_block", moe.routing_block, file.source("block_size"));
  }
  if (config.delete_token_id >= 0) {
    add_resolved(config, "delete_token_id", config.delete_token_id, file.source("delete_token_id"));
    add_resolved(config, "split_token_id", config.split_token_id, file.source("split_token_id"));
  }
  add_resolved(config, "expert_groups", moe.num_groups, file.source("n_group"));
  add_resolved(config, "kept_expert_groups", moe.kept_groups, file.source("topk_group"));
  add_resolved(config, "routed_scaling_factor", moe.scaling, file.source("routed_scaling_factor"));
  add_resolved(config, "shared_expert_size", moe.shared_size, file.source("num_shared_experts"));
}

}  // namespace

Family llada2_moe_family() {
  Family family;
  family.name = "llada2_moe";
  family.architectures = {"LLaDA2MoeModelLM"};
  family.meaning = "LLaDA2.0 to 2.2, mixtures of experts with sigmoid scores";
  family.source = "dFactory, modeling_llada2_moe.py:LLaDA2MoeModelLM.generate";
  family.example = "capture inclusionAI/LLaDA2.0-mini";
  family.refuses =
      "scores other than sigmoids, a normed or split projection, norm_topk_prob false, a router "
      "without a bias";
  family.experts = true;
  family.partial_rotary = true;
  family.default_head_dim = 0;
  family.mask_token = "<|mask|>";
  family.default_mask_token_id = 156895;
  family.default_block_length = 32;
  family.weights.embed = "model.word_embeddings.weight";
  family.weights.q = family.weights.k = family.weights.v = "";
  family.weights.o = "attention.dense";
  family.weights.q_norm = "attention.query_layernorm";
  family.weights.k_norm = "attention.key_layernorm";
  family.weights.qkv = "attention.query_key_value";
  family.keys = {{"attention_bias", "use_qkv_bias"}, {"attention_output_bias", "use_bias"}};
  family.read_layers = read_llada2_layers;
  family.record = record_llada2;
  return family;
}

Family llada2_moe_veomni_family() {
  Family family;
  family.name = "llada2_moe_veomni";
  family.meaning = "LLaDA2 MoE in the layout of its trainer";
  family.source = "dFactory, scripts/moe_convertor.py";
  family.refusal =
      "its experts are stacked for training; dFactory's scripts/moe_convertor.py converts it to "
      "one "
      "tensor per expert (model_type \"llada2_moe\")";
  return family;
}

}  // namespace blockscope
